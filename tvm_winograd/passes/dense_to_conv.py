"""Dense layers with long sums become 1x1 convolutions of 1x1 maps: (n, c) is (n, c, 1, 1).

A matmul that TVM schedules adds its products one after the other: over the 25,088 of VGG's first
dense layer that errs 3.6 times as much as torch does (2.6e-6 of the whole network, on the CPU).
Our convolutions sum in parts, take the bias and the ReLU along, and are verified alone.
"""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import mutator

from ..ir.bindings import op_name
from ..ir.conv_spec import static_shape
from .maps import Maps, rewritten
from .params import Params

_LONGEST = 2048  # products, of a sum that may stay a matmul: ResNet-50's classifier


def dense_to_conv(mod: tvm.IRModule, params: Params) -> tuple[tvm.IRModule, Params]:
    """matmul(x, weight) [-> add(bias)] [-> clip] of long sums as convolutions, in `mod["main"]`.

    Args:
        params: the weight parameters, in the order of the function's last arguments.
    Returns:
        The new module and its parameters: such weights are (k, c, 1, 1) now, biases (1, k, 1, 1),
        under their old names.
    """
    return rewritten(mod, params, _Rewriting(mod, params))


@mutator
class _Rewriting(Maps):
    def __init__(self, mod: tvm.IRModule, params: Params) -> None:
        super().__init__(mod, params)
        self.transposed: dict[relax.Var, relax.Var] = {}  # (c, k) -> the parameter (k, c)

    def start(self, binding: relax.VarBinding) -> relax.Expr | None:
        call = binding.value
        self._note_transposed(binding)
        return self._dense(*call.args) if op_name(call) == "relax.matmul" else None

    def back(self, variable: relax.Var) -> relax.Expr:
        return relax.op.reshape(self.maps[variable], static_shape(variable))

    def bias(self, x: relax.Var, array: np.ndarray) -> np.ndarray | None:
        _, k = static_shape(x)
        return array.reshape(1, k, 1, 1) if array.shape in ((k,), (1, k)) else None

    def _note_transposed(self, binding: relax.VarBinding) -> None:
        call = binding.value
        if op_name(call) == "relax.permute_dims" and call.args[0] in self.values:
            axes = call.attrs.axes
            if len(static_shape(call)) == 2 and (not axes or int(axes[0]) == 1):
                self.transposed[binding.var] = call.args[0]

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
        return relax.op.nn.conv2d(data, self.param(param, array.reshape(k, c, 1, 1)))
