"""What the passes ask of a relax function: operators, and who reads a variable."""

from __future__ import annotations

from collections import Counter
from typing import Any

import tvm
from tvm import relax


def op_name(value: Any) -> str | None:
    """The operator that an expression calls, e.g. "relax.add"; None if it calls none."""
    if isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.Op):
        return value.op.name
    return None


def count_uses(func: relax.Function) -> Counter:
    """How many bindings read each variable; the function's result counts as one."""
    uses: Counter = Counter()

    def count(expr: Any) -> None:
        if isinstance(expr, relax.Var):
            uses[expr] += 1

    for block in func.body.blocks:
        for binding in block.bindings:
            relax.analysis.post_order_visit(binding.value, count)
    relax.analysis.post_order_visit(func.body.body, count)
    return uses
