"""Reductions to a scalar keep their axes, and a reshape drops them.

TVM schedules no block without loops over its output: neither dlight nor a split of a long sum.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

_REDUCED = ("mean", "sum", "max", "min", "prod", "variance", "std")
_INDEXED = ("argmax", "argmin")


def keep_axes(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with no reduction of "main" whose result has no axes."""
    if not any(_to_scalar(b.value) for block in mod["main"].body.blocks for b in block.bindings):
        return mod
    keeping = _Keeping(mod)
    keeping.builder_.update_func(mod.get_global_var("main"), keeping.visit_expr(mod["main"]))
    return keeping.builder_.get()


def _to_scalar(expr: Any) -> str:
    """The name of a reduction to a scalar, or ""."""
    name = getattr(getattr(expr, "op", None), "name", "").removeprefix("relax.")
    if name not in (*_REDUCED, *_INDEXED) or expr.ty.ndim != 0 or expr.args[0].ty.ndim == 0:
        return ""
    return name


@mutator
class _Keeping(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        name, new = _to_scalar(call), super().visit_call_(call)
        if not name:
            return new
        (x,) = new.args
        if name in _INDEXED:
            x = self.builder_.emit(relax.op.reshape(x, [-1]))
            kept = getattr(relax.op, name)(x, 0, True)
        else:
            kept = getattr(relax.op, name)(x, list(range(x.ty.ndim)), True)
        return relax.op.reshape(self.builder_.emit(kept), [])
