"""Dense layers with long sums become 1x1 convolutions of 1x1 maps: (n, c) is (n, c, 1, 1).

A matmul that TVM schedules adds its products one after the other: over the 25,088 of VGG's first
dense layer that errs 3.6 times as much as torch does (2.6e-6 of the whole network, on the CPU).
Our convolutions sum in parts, take the bias and the ReLU along, and are verified alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from ..ir.bindings import op_name
from ..ir.clips import Clip, clip_of
from ..ir.conv_spec import static_shape
from ..ir.rebuild import main_rewritten
from .params import Params, keep_used_params, param_names

_LONGEST = 2048  # products, of a sum that may stay a matmul: ResNet-50's classifier


def dense_to_conv(mod: tvm.IRModule, params: Params) -> tuple[tvm.IRModule, Params]:
    """matmul(x, weight) [-> add(bias)] [-> clip] of long sums as convolutions, in `mod["main"]`.

    Args:
        params: the weight parameters, in the order of the function's last arguments.
    Returns:
        The new module and its parameters: such weights are (k, c, 1, 1) now, biases (1, k, 1, 1),
        under their old names.
    """
    main = mod["main"]
    rewriting = _Rewriting(mod, param_names(main, params), params)
    done = main_rewritten(mod, rewriting)
    if not rewriting.maps:
        return mod, params
    out = relax.transform.DeadCodeElimination(["main"])(done)
    return keep_used_params(out, rewriting.names, rewriting.values)


@mutator
class _Rewriting(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, names: dict[relax.Var, str], params: Params) -> None:
        super().__init__(mod)
        self.names = dict(names)
        self.values = {variable: params[name] for variable, name in names.items()}
        self.maps: dict[relax.Var, relax.Var] = {}  # (n, k) -> the (n, k, 1, 1) it is made of
        self.transposed: dict[relax.Var, relax.Var] = {}  # (c, k) -> the parameter (k, c)
        self.made: dict[relax.Var, relax.Var] = {}  # parameter -> the same for a convolution

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        value = self._map_of(binding.value)
        if value is None:
            self._note_transposed(binding)
            super().visit_var_binding_(binding)
            return
        self.maps[binding.var] = self.builder_.emit(value)
        flat = relax.op.reshape(self.maps[binding.var], static_shape(binding.var))
        inside = isinstance(binding.var, relax.DataflowVar)
        emit = self.builder_.emit if inside else self.builder_.emit_output
        self.set_var_remap(binding.var, emit(flat))

    def _note_transposed(self, binding: relax.VarBinding) -> None:
        call = binding.value
        if op_name(call) == "relax.permute_dims" and call.args[0] in self.values:
            axes = call.attrs.axes
            if len(static_shape(call)) == 2 and (not axes or int(axes[0]) == 1):
                self.transposed[binding.var] = call.args[0]

    def _map_of(self, call: Any) -> relax.Expr | None:
        """`call` on maps of 1x1 pixels, if it is a long dense layer, or its bias or ReLU."""
        name = op_name(call)
        if name == "relax.matmul":
            return self._dense(*call.args)
        if (clip := clip_of(call)) is not None and clip.value in self.maps:
            return Clip(self.maps[clip.value], clip.low, clip.high).call()
        if name == "relax.add":
            x, bias = call.args if call.args[0] in self.maps else reversed(call.args)
            if x in self.maps and bias in self.values:
                shape, (_, k) = self.values[bias].shape, static_shape(x)
                if shape in ((k,), (1, k)):
                    array = self.values[bias].reshape(1, k, 1, 1)
                    return relax.op.add(self.maps[x], self._param(bias, array))
        return None

    def _dense(self, x: relax.Expr, weight: relax.Expr) -> relax.Expr | None:
        param = self.transposed.get(weight, weight)
        if param not in self.values or len(static_shape(weight)) != 2:
            return None
        c, k = static_shape(weight)
        if c <= _LONGEST or len(static_shape(x)) != 2:
            return None
        data = self.maps.get(x)
        if data is None:
            shape = (*static_shape(x), 1, 1)
            data = self.builder_.emit(relax.op.reshape(self.visit_expr(x), shape))
        array = self.values[param] if weight in self.transposed else self.values[param].T
        return relax.op.nn.conv2d(data, self._param(param, array.reshape(k, c, 1, 1)))

    def _param(self, old: relax.Var, array: np.ndarray) -> relax.Var:
        """The parameter `old` as `array`, the same values in the shape that a convolution takes."""
        if old not in self.made:
            ty = relax.TensorType(array.shape, str(array.dtype))
            self.made[old] = relax.Var(old.name, ty)
            self.names[self.made[old]] = self.names[old]
            self.values[self.made[old]] = array
        return self.made[old]
