"""Sorts and running sums of both importers."""

from __future__ import annotations

from typing import Any

from tvm import relax

from ..te import sorting


def first(builder: Any, x: Any, axis: int, count: int, largest: bool) -> tuple[Any, Any]:
    """(values, their int64 indices) of the `count` largest or smallest along `axis`, in order."""
    rank = builder.emit_te(sorting.ranks, x, axis, largest, primfunc_name_hint="ranks")
    index = builder.emit_te(sorting.order, rank, axis, count, primfunc_name_hint="order")
    return builder.emit(relax.op.gather_elements(x, index, axis)), index


def running_sum(builder: Any, x: Any, axis: int, exclusive: bool, reverse: bool) -> Any:
    return builder.emit_te(
        sorting.running_sum, x, axis, exclusive, reverse, primfunc_name_hint="running_sum"
    )


def too_long(x: Any, axis: int) -> str | None:
    """None, or why the axis is too long."""
    size = int(x.ty.shape.values[axis])
    return None if size <= sorting.LONGEST else f"{size} elements; at most {sorting.LONGEST}"
