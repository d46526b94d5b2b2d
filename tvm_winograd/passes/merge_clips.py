"""Clips in one form: min(max(x, 0), 6) is one relax.clip, however a frontend wrote it.

relu, clip, minimum, maximum and where(x > c, c, x), which stands for ONNX's Clip, become relu,
clip, minimum or maximum; of a chain that nobody reads in between, one is left.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from ..ir.bindings import count_uses, op_name
from ..ir.clips import Clip, bounded, clip_of, scalar
from ..ir.rebuild import main_rewritten

_BEYOND = {"relax.greater": "relax.minimum", "relax.less": "relax.maximum"}


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
    if scalar(bound) is None or scalar(comparison.args[1]) != scalar(bound):
        return None
    return bounded(_BEYOND[comparison.op.name], value, bound, where)


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
