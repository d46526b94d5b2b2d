"""Clips in one form: min(max(x, 0), 6) is one relax.clip, however a frontend wrote it.

relu, clip, minimum, maximum and where(x > c, c, x), which stands for ONNX's Clip, become relu,
clip, minimum or maximum; of a chain that nobody reads in between, one is left.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from ..ir.bindings import count_uses, op_name
from ..ir.rebuild import main_rewritten

_BEYOND = {"relax.greater": "relax.minimum", "relax.less": "relax.maximum"}
_NUMBERS = (tirx.IntImm, tirx.FloatImm)


@dataclass(frozen=True)
class Clip:
    """min(max(value, low), high), low <= high, of floating values; infinite where unbounded."""

    value: relax.Expr
    low: float
    high: float

    def call(self) -> relax.Call:
        """It as one operator."""
        dtype = str(self.value.ty.dtype)
        if self.high == inf and self.low == 0:
            return relax.op.nn.relu(self.value)
        if self.high == inf:
            return relax.op.maximum(self.value, relax.const(self.low, dtype))
        if self.low == -inf:
            return relax.op.minimum(self.value, relax.const(self.high, dtype))
        return relax.op.clip(self.value, self.low, self.high)

    def behind(self, first: Clip) -> Clip:
        """This clip of what `first` gives, as one."""
        low, high = (min(max(v, self.low), self.high) for v in (first.low, first.high))
        return Clip(first.value, low, high)


def clip_of(expr: Any) -> Clip | None:
    """The clip that an expression is, if it is one operator with constant bounds."""
    name = op_name(expr)
    if name == "relax.nn.relu":
        return _clip(expr.args[0], 0.0, inf)
    if name == "relax.nn.relu6":
        return _clip(expr.args[0], 0.0, 6.0)
    if name == "relax.clip" and all(isinstance(a, _NUMBERS) for a in expr.args[1:]):
        return _clip(expr.args[0], *(float(a.value) for a in expr.args[1:]))
    if name in ("relax.minimum", "relax.maximum"):
        value, bound = expr.args if _scalar(expr.args[0]) is None else reversed(expr.args)
        return _bounded(name, value, bound, expr)
    return None


def merge_clips(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with the clips of "main" in one form; what only they read dies as dead code."""
    merging = _Merging(mod, _find(mod["main"]))
    done = main_rewritten(mod, merging)
    return relax.transform.DeadCodeElimination(["main"])(done)


def _find(func: relax.Function) -> dict[relax.Var, Clip]:
    """Variable -> the clip that it holds, of a value as early in a chain as possible."""
    uses = count_uses(func)
    clips: dict[relax.Var, Clip] = {}
    beyond: dict[relax.Var, Any] = {}  # variable of a comparison -> the comparison
    for block in func.body.blocks:
        for binding in block.bindings:
            if op_name(binding.value) in _BEYOND and uses[binding.var] == 1:
                beyond[binding.var] = binding.value
            clip, readers = clip_of(binding.value), 1
            if clip is None and op_name(binding.value) == "relax.where":
                clip, readers = _chosen(binding.value, beyond), 2
            if clip is not None:
                first = clips.get(clip.value)
                alone = uses[clip.value] == readers
                clips[binding.var] = clip.behind(first) if first and alone else clip
    return clips


def _chosen(where: relax.Call, beyond: dict[relax.Var, Any]) -> Clip | None:
    """The clip that where(compared, bound, value) is."""
    condition, bound, value = where.args
    comparison = beyond.get(condition)
    if comparison is None or not comparison.args[0].same_as(value):
        return None
    if _scalar(bound) is None or _scalar(comparison.args[1]) != _scalar(bound):
        return None
    return _bounded(_BEYOND[comparison.op.name], value, bound, where)


def _bounded(name: str, value: Any, bound: Any, result: Any) -> Clip | None:
    """relax.minimum or relax.maximum of a value and one number, which leaves its shape alone."""
    limit = _scalar(bound)
    if limit is None or value.ty.ndim != result.ty.ndim:
        return None
    return _clip(value, -inf, limit) if name == "relax.minimum" else _clip(value, limit, inf)


def _clip(value: Any, low: float, high: float) -> Clip | None:
    floating = isinstance(value, relax.Var) and "float" in str(value.ty.dtype)
    return Clip(value, low, high) if floating and low <= high else None


def _scalar(expr: Any) -> float | None:
    """The one value of a constant."""
    if not isinstance(expr, tvm.ir.GenericConst):
        return None
    array = expr.value.numpy()
    return float(array.item()) if array.size == 1 else None


@mutator
class _Merging(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, clips: dict[relax.Var, Clip]) -> None:
        super().__init__(mod)
        self.clips = clips

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        clip = self.clips.get(binding.var)
        if clip is None:
            super().visit_var_binding_(binding)
            return
        new = Clip(self.visit_expr(clip.value), clip.low, clip.high).call()
        inside = isinstance(binding.var, relax.DataflowVar)
        emit = self.builder_.emit if inside else self.builder_.emit_output
        self.set_var_remap(binding.var, emit(new, binding.var.name))
