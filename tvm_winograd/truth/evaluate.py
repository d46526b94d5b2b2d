"""A numpy interpreter of high-level relax: the float64 truth that every build is checked against.

It runs a model before any lowering, hands out each convolution's real input and output
(`on_conv`), and lets calibration replace batch norm statistics on the way (`on_batch_norm`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..errors import InputError, UnsupportedError
from ..ir.conv_spec import conv2d_spec, layer_names, static_shape, weight_to_oihw
from ..ir.recurrent import recurrent_of
from ..shapes import ConvSpec
from . import reference
from .loops import compile_loops
from .numpy_ops import OPS
from .numpy_recurrent import recurrent

Conv = Callable[[ConvSpec, np.ndarray, np.ndarray], np.ndarray]
# (index, layer name, spec, x, w, y), arrays in the evaluation dtype, w as (k, c/groups, r, s)
OnConv = Callable[[int, str, ConvSpec, np.ndarray, np.ndarray, np.ndarray], None]
# (names of gamma, beta, mean, var; x with channels last) -> new (mean, var) or None
OnBatchNorm = Callable[[tuple[str, ...], np.ndarray], tuple[np.ndarray, np.ndarray] | None]


def evaluate(
    mod: Any,
    params: Mapping[str, np.ndarray],
    inputs: Sequence[np.ndarray],
    dtype: str = "float64",
    conv: Conv | None = None,
    on_conv: OnConv | None = None,
    on_batch_norm: OnBatchNorm | None = None,
) -> list[np.ndarray]:
    """The outputs of `mod["main"]`, every floating value computed in `dtype`.

    Args:
        params: the weight parameters in order, as in `Model.params`.
        inputs: one array per network input.
        conv: replaces the reference convolution, e.g. `peers.torch_conv`.
        on_conv: told about each convolution; named as the compiler names it.
        on_batch_norm: told each batch norm's parameter names and its input, channels last;
            may return the (mean, var) to use instead.
    Raises:
        InputError: inputs of the wrong number or shape.
        UnsupportedError: an operator this interpreter does not know.
    """
    run = _Run(mod, dtype, conv or _reference_conv(dtype), on_conv, on_batch_norm)
    return run.function(mod["main"], params, inputs)


def _reference_conv(dtype: str) -> Conv:
    return lambda spec, x, w: reference.conv2d(spec, x, w, dtype)


@dataclass
class _Run:
    """One evaluation: the values of live variables, and the hooks."""

    mod: Any
    dtype: str
    conv: Conv
    on_conv: OnConv | None
    on_batch_norm: OnBatchNorm | None
    kernels: dict[Any, Any] = field(default_factory=dict)  # of call_tir

    def function(
        self, function: Any, params: Mapping[str, np.ndarray], inputs: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        names = list(params)
        variables = list(function.params)
        _check_inputs(variables, inputs, len(names))
        self.convs = 0
        self.names = dict(zip(variables[len(inputs) :], names, strict=True))
        arrays = [*inputs, *params.values()]
        self.values = {v: self.cast(a) for v, a in zip(variables, arrays, strict=True)}
        bindings = [b for block in function.body.blocks for b in block.bindings]
        weights = [self.names.get(w, "") for w in _conv_weights(bindings)]
        self.layers = layer_names(weights)
        dying = _last_uses(bindings, function.body.body)
        for binding, dead in zip(bindings, dying, strict=True):
            self.values[binding.var] = self.value(binding.value)
            for variable in dead:
                del self.values[variable]
        result = self.value(function.body.body)
        return list(result) if isinstance(result, tuple) else [result]

    def cast(self, array: Any) -> np.ndarray:
        """Floating arrays in the evaluation dtype, others (shapes, indices) as they are."""
        array = np.asarray(array)
        return array.astype(self.dtype, copy=False) if array.dtype.kind == "f" else array

    def value(self, expr: Any) -> Any:
        """The value of a variable, constant, tuple, shape, number or call."""
        from tvm import ir, relax, tirx

        if isinstance(expr, relax.Call):
            return self.call(expr)
        if isinstance(expr, relax.Tuple):
            return tuple(self.value(field) for field in expr.fields)
        if isinstance(expr, relax.TupleGetItem):
            return self.value(expr.tuple_value)[int(expr.index)]
        if isinstance(expr, relax.ShapeExpr):
            return tuple(int(dim) for dim in expr.values)
        if isinstance(expr, tirx.IntImm | tirx.FloatImm):
            return expr.value
        if isinstance(expr, ir.GenericConst):
            return self.cast(expr.value.numpy())
        if expr in self.values:
            return self.values[expr]
        raise UnsupportedError(f"cannot evaluate a relax {type(expr).__name__}: {expr}")

    def call(self, call: Any) -> Any:
        name = getattr(call.op, "name", str(call.op))
        if name == "relax.nn.conv2d":
            return self.conv2d(call)
        if name == "relax.nn.batch_norm":
            return self.batch_norm(call)
        if name == "relax.call_tir":
            return self.call_tir(call)
        if name not in OPS:
            raise UnsupportedError(
                f"operator {name} is not evaluated; supported are conv2d, batch_norm, "
                f"{', '.join(sorted(op.removeprefix('relax.') for op in OPS))}"
            )
        return OPS[name](call.attrs, *(self.value(arg) for arg in call.args))

    def call_tir(self, call: Any) -> Any:
        """A loop nest that an importer has made: a recurrent layer by its formulas, any other
        compiled as it is, and run in its own dtypes."""
        arrays = [self.value(arg) for arg in call.args[1].fields]
        if (layer := recurrent_of(self.mod[call.args[0]])) is not None:
            return recurrent(layer, arrays)
        kernel = self.kernels.get(call.args[0])
        if kernel is None:
            kernel = self.kernels[call.args[0]] = compile_loops(self.mod[call.args[0]])
        return self.cast(kernel(call, arrays))

    def conv2d(self, call: Any) -> np.ndarray:
        spec = conv2d_spec(call)
        x, weight = (self.value(arg) for arg in call.args)
        w = weight_to_oihw(weight, str(call.attrs.kernel_layout))
        y = np.asarray(self.conv(spec, x, w)).astype(self.dtype, copy=False)
        if self.on_conv:
            self.on_conv(self.convs, self.layers[self.convs], spec, x, w, y)
        self.convs += 1
        return y

    def batch_norm(self, call: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        attrs, axis = call.attrs, int(call.attrs.axis)
        if attrs.training:
            raise UnsupportedError(
                "batch_norm in training mode is not evaluated; export the model after .eval()"
            )
        x, gamma, beta, mean, var = (self.value(arg) for arg in call.args)
        if self.on_batch_norm:
            names = tuple(self.names.get(arg, "") for arg in call.args[1:])
            new = self.on_batch_norm(names, np.moveaxis(x, axis, -1))
            mean, var = new if new is not None else (mean, var)
        scale = 1 / np.sqrt(self.cast(var) + float(attrs.epsilon))
        if attrs.scale:
            scale = scale * gamma
        shift = -self.cast(mean) * scale
        if attrs.center:
            shift = shift + beta
        shape = [-1 if i == axis % x.ndim else 1 for i in range(x.ndim)]
        out = x * scale.astype(self.dtype).reshape(shape)
        out += shift.astype(self.dtype).reshape(shape)
        return out, mean, var


def _check_inputs(variables: Sequence[Any], inputs: Sequence[np.ndarray], params: int) -> None:
    if len(variables) != len(inputs) + params:
        raise InputError(
            f"got {len(inputs)} inputs and {params} parameters for a function of "
            f"{len(variables)} arguments"
        )
    for variable, array in zip(variables, inputs, strict=False):
        shape = static_shape(variable)
        if np.shape(array) != shape:
            raise InputError(
                f"input {variable.name!r} has shape {np.shape(array)}; the model takes {shape}"
            )


def _conv_weights(bindings: Sequence[Any]) -> list[Any]:
    """The weight of each convolution, in order."""
    calls = [b.value for b in bindings if getattr(b.value, "op", None) is not None]
    return [c.args[1] for c in calls if getattr(c.op, "name", "") == "relax.nn.conv2d"]


def _last_uses(bindings: Sequence[Any], result: Any) -> list[list[Any]]:
    """For each binding, the variables that nothing needs after it."""
    from tvm.relax.analysis import free_vars

    seen = set(free_vars(result))
    dying: list[list[Any]] = []
    for binding in reversed(bindings):
        used = {*free_vars(binding.value), binding.var}
        dying.append([v for v in used if v not in seen])
        seen |= used
    return dying[::-1]
