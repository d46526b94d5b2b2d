"""Replace each composite convolution by a call of one PrimFunc of ours, weights transformed.

The PrimFunc is unscheduled here (apply_schedules follows); equal convolutions share one. Weights
that are parameters are packed in numpy, once, at compile time; weights that the network computes
are packed on the device.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from ..choose.chooser import Chooser
from ..choose.select import Choice
from ..ir.conv_spec import KERNEL_AXES, conv2d_spec, layer_names, weight_to_oihw
from ..ir.rebuild import main_rewritten
from ..shapes import ConvSpec, Epilogue
from .group_convs import COMPOSITE
from .params import Params, keep_used_params, param_names


@dataclass(frozen=True)
class Layer:
    """One convolution of the network and what computes it."""

    name: str
    spec: ConvSpec
    epilogue: Epilogue
    choice: Choice
    function: str  # the PrimFunc
    peaks: tuple[str, ...] = ()  # "given", "written": what it takes and gives (chain_peaks.py)

    def as_dict(self) -> dict[str, Any]:
        head = {"name": self.name, "spec": self.spec.key(), "epilogue": self.epilogue.key()}
        math = self.choice.kernel.math_of(self.spec)
        peaks = {"peaks": list(self.peaks)} if self.peaks else {}
        made = {"function": self.function, "math": math, **self.choice.as_dict()}
        return {**head, **made, **peaks}


def lower_convs(
    mod: tvm.IRModule, params: Params, choose: Chooser
) -> tuple[tvm.IRModule, Params, list[Layer]]:
    """The module with call_tir in place of composites, its parameters, and the layers in order.

    Args:
        mod: after group_convs; "main" takes num_input inputs, then the parameters in order.
        choose: called once per layer with (name, spec, epilogue).
    """
    main = mod["main"]
    names = param_names(main, params)
    # Chosen before anything is rewritten: an error of ours would not survive TVM's visitors.
    chosen = _chosen(mod, names, choose)
    lowering = _Lowering(mod, names, params, chosen)
    out = relax.transform.DeadCodeElimination()(main_rewritten(mod, lowering))
    values = {**{v: params[n] for v, n in names.items()}, **lowering.new_values}
    out, kept = keep_used_params(out, {**names, **lowering.new_names}, values)
    return out, kept, lowering.layers


def _chosen(
    mod: tvm.IRModule, names: dict[relax.Var, str], choose: Chooser
) -> dict[int, tuple[str, Choice]]:
    """(name, choice) of each convolution, by its index."""
    weights, convs = {}, {}
    for block in mod["main"].body.blocks:
        for binding in block.bindings:
            if (composite := _composite(mod, binding.value)) is not None:
                index = int(composite.attrs["index"])
                weights[index] = names.get(binding.value.args[1], "")
                convs[index] = composite
    order = sorted(convs)
    called = zip(order, layer_names([weights[i] for i in order]), strict=True)
    return {
        index: (name, choose(name, conv2d_spec(_conv(convs[index])), _epilogue(convs[index])))
        for index, name in called
    }


def _conv(composite: relax.Function) -> relax.Call:
    return composite.body.blocks[0].bindings[0].value


def _epilogue(composite: relax.Function) -> Epilogue:
    return Epilogue.from_key(composite.attrs["epilogue"])


def _composite(mod: tvm.IRModule, call: Any) -> relax.Function | None:
    """The composite convolution that `call` calls."""
    if not isinstance(call, relax.Call) or not isinstance(call.op, tvm.ir.GlobalVar):
        return None
    function = mod[call.op]
    if not isinstance(function, relax.Function) or not function.attrs:
        return None
    return function if function.attrs.get("Composite") == COMPOSITE else None


@mutator
class _Lowering(PyExprMutator):
    def __init__(
        self,
        mod: tvm.IRModule,
        names: dict[relax.Var, str],
        params: Params,
        chosen: dict[int, tuple[str, Choice]],
    ) -> None:
        super().__init__(mod)
        self.mod = mod
        self.names = names  # relax variable -> parameter name
        self.params = params
        self.chosen = chosen
        self.new_names: dict[relax.Var, str] = {}
        self.new_values: dict[relax.Var, np.ndarray] = {}
        self.layers: list[Layer] = []
        self.functions: dict[tuple, Any] = {}

    def visit_call_(self, call: relax.Call) -> Any:
        composite = _composite(self.mod, call)
        if composite is None:
            return super().visit_call_(call)
        name, choice = self.chosen[int(composite.attrs["index"])]
        return self._lower(name, choice, composite, list(call.args))

    def _lower(self, name: str, choice: Choice, composite: relax.Function, args: list) -> Any:
        conv, epilogue = _conv(composite), _epilogue(composite)
        spec, layout = conv2d_spec(conv), str(conv.attrs.kernel_layout)
        weight = args[1]
        gvar = self._function(spec, epilogue, choice)
        self.layers.append(Layer(name, spec, epilogue, choice, gvar.name_hint))
        new = [self.visit_expr(args[0]), self._packed(name, weight, layout, spec, choice)]
        rest = args[2:]
        if epilogue.bias:
            new.append(self._flat_bias(name, rest.pop(0), spec))
        new += [self.visit_expr(a) for a in rest]
        out = relax.TensorType(spec.output_shape, spec.out_dtype)
        return relax.call_tir(gvar, new, out)

    def _function(self, spec: ConvSpec, epilogue: Epilogue, choice: Choice) -> Any:
        key = (spec, epilogue, choice.kernel.name, choice.config)
        if key not in self.functions:
            func = choice.kernel.prim_func(spec, epilogue, choice.config)
            name = function_name(spec, epilogue, choice)
            # opaque: nothing is fused into it, its epilogue is in it already
            func = func.with_attr("op_pattern", 8).without_attr("global_symbol")
            self.functions[key] = self.builder_.add_func(func, name)
        return self.functions[key]

    def _value(self, expr: Any) -> np.ndarray | None:
        """The value of a parameter or constant."""
        if expr in self.names:
            return self.params[self.names[expr]]
        return expr.value.numpy() if isinstance(expr, tvm.ir.GenericConst) else None

    def _param(self, name: str, value: np.ndarray) -> relax.Var:
        """A new parameter of the network."""
        variable = relax.Var(
            name.replace(".", "_"), relax.TensorType(value.shape, str(value.dtype))
        )
        self.new_names[variable], self.new_values[variable] = name, value
        return variable

    def _packed(
        self, name: str, weight: Any, layout: str, spec: ConvSpec, choice: Choice
    ) -> relax.Expr:
        kernel, config = choice.kernel, choice.config
        value = self._value(weight)
        if value is not None:
            packed = kernel.pack_weights(weight_to_oihw(value, layout), spec, config)
            return self._param(f"{name}.packed.{kernel.name}.{_digest(packed.shape)}", packed)
        axes = [layout.index(axis) for axis in KERNEL_AXES]
        oihw = self.builder_.emit(relax.op.permute_dims(self.visit_expr(weight), axes))
        func = kernel.weight_func(spec, config).without_attr("global_symbol")
        gvar = self.builder_.add_func(func.with_attr("op_pattern", 8), f"pack_{name}")
        buffer = func.params[1]
        ty = relax.TensorType([int(v) for v in buffer.shape], buffer.dtype)
        return self.builder_.emit(relax.call_tir(gvar, [oihw], ty))

    def _flat_bias(self, name: str, bias: Any, spec: ConvSpec) -> relax.Expr:
        value = self._value(bias)
        if value is not None:
            return self._param(f"{name}.bias", value.reshape(-1).astype(spec.acc))
        return self.builder_.emit(relax.op.reshape(self.visit_expr(bias), (spec.k,)))


def function_name(spec: ConvSpec, epilogue: Epilogue, choice: Choice) -> str:
    """A readable name for a profile, e.g. winograd_f2_fused_n1c64h56w56k64r3s3_bias_relu."""
    parts = [choice.kernel.name, spec.key().split("_")[0], epilogue.key()]
    return re.sub(r"[^0-9A-Za-z_]+", "_", "_".join(parts)).rstrip("_")


def _digest(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
