"""Transposed convolutions become convolutions: one for every phase of the stride, in one.

y[s a + p] of a transposed convolution of stride s sums x[a - t] w[s t + p] over t: for each phase p
a convolution of stride 1 with every s-th tap, read backwards. The phases are channels of one
convolution, whose pixels are interleaved behind it. TVM's own writes zeros between the pixels of x
and multiplies them; no kernel of ours took it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import mutator

from ..ir.bindings import op_name
from ..ir.conv_spec import static_shape
from .maps import Maps, rewritten
from .params import Params


def transposed_convs(mod: tvm.IRModule, params: Params) -> tuple[tvm.IRModule, Params]:
    """Every conv2d_transpose of NCHW maps and a parameter, without dilation, as a conv2d.

    Args:
        params: the weight parameters, in the order of the function's last arguments.
    Returns:
        The new module and its parameters: a weight (c, k / groups, r, s) is
        (k * phases, c / groups, taps, taps) now, under its old name.
    """
    return rewritten(mod, params, _Rewriting(mod, params))


@dataclass(frozen=True)
class Axis:
    """One axis of a transposed convolution: `size` pixels in, `out` pixels out."""

    size: int
    window: int
    stride: int
    cut: int  # padding before: as many are cut off at the begin
    out: int

    @property
    def taps(self) -> int:
        """Of each phase."""
        return -(-self.window // self.stride)

    @property
    def pads(self) -> tuple[int, int]:
        """Of x, before and behind, for the groups of `stride` pixels that are not cut off."""
        last = -(-(self.cut + self.out) // self.stride)
        return max(self.taps - 1 - self.cut // self.stride, 0), max(last - self.size, 0)

    @property
    def begin(self) -> int:
        """The first pixel kept, of those that are computed."""
        return self.cut - (self.taps - 1 - self.pads[0]) * self.stride


def phases_of(w: np.ndarray, groups: int, axes: tuple[Axis, Axis]) -> np.ndarray:
    """(c, k / groups, r, s) -> (k * phases, c / groups, taps, taps): k slowest, then the phase."""
    (c, kg, r, s), (h, v) = w.shape, axes
    full = np.zeros((c, kg, h.taps * h.stride, v.taps * v.stride), w.dtype)
    full[:, :, :r, :s] = w
    parts = full.reshape(groups, c // groups, kg, h.taps, h.stride, v.taps, v.stride)
    turned = parts[:, :, :, ::-1, :, ::-1, :].transpose(0, 2, 4, 6, 1, 3, 5)
    shape = (groups * kg * h.stride * v.stride, c // groups, h.taps, v.taps)
    return np.ascontiguousarray(turned.reshape(shape))


@mutator
class _Rewriting(Maps):
    def __init__(self, mod: tvm.IRModule, params: Params) -> None:
        super().__init__(mod, params)
        self.axes: dict[relax.Var, tuple[Axis, Axis]] = {}

    def start(self, binding: relax.VarBinding) -> relax.Expr | None:
        call = binding.value
        if op_name(call) != "relax.nn.conv2d_transpose" or not self._takes(call):
            return None
        x, weight = call.args
        groups = int(call.attrs.groups)
        axes = _axes(call)
        self.axes[binding.var] = axes
        array = phases_of(self.values[weight], groups, axes)
        (top, bottom), (left, right) = (axis.pads for axis in axes)
        return relax.op.nn.conv2d(
            self.visit_expr(x),
            self.param(weight, array, groups, axes),
            padding=(top, left, bottom, right),
            groups=groups,
        )

    def _takes(self, call: relax.Call) -> bool:
        attrs = call.attrs
        plain = str(attrs.data_layout) == "NCHW" and str(attrs.kernel_layout) == "IOHW"
        dilated = any(int(d) != 1 for d in attrs.dilation)
        return plain and not dilated and call.args[1] in self.values

    def back(self, variable: relax.Var) -> relax.Expr:
        (h, v), emit = self.axes[variable], self.builder_.emit
        n, k, out_h, out_w = static_shape(variable)
        rows, columns = static_shape(self.maps[variable])[2:]
        phased = (n, k, h.stride, v.stride, rows, columns)
        y = emit(relax.op.reshape(self.maps[variable], phased))
        y = emit(relax.op.permute_dims(y, [0, 1, 4, 2, 5, 3]))
        y = relax.op.reshape(y, (n, k, rows * h.stride, columns * v.stride))
        if (rows * h.stride, columns * v.stride) == (out_h, out_w):
            return y
        ends = [h.begin + out_h, v.begin + out_w]
        return relax.op.strided_slice(emit(y), [2, 3], [h.begin, v.begin], ends)

    def bias(self, x: relax.Var, array: np.ndarray) -> np.ndarray | None:
        h, v = self.axes[x]
        k = static_shape(x)[1]
        if array.shape not in ((1, k, 1, 1), (k, 1, 1)):
            return None
        return np.repeat(array.reshape(k), h.stride * v.stride).reshape(1, -1, 1, 1)

    def follow(self, variable: relax.Var, x: relax.Var) -> None:
        self.axes[variable] = self.axes[x]


def _axes(call: relax.Call) -> tuple[Axis, Axis]:
    sizes, windows, out = (static_shape(e)[2:] for e in (*call.args, call))
    strides, pads = list(call.attrs.strides), list(call.attrs.padding)
    h, v = (
        Axis(int(sizes[i]), int(windows[i]), int(strides[i]), int(pads[i]), int(out[i]))
        for i in (0, 1)
    )
    return h, v
