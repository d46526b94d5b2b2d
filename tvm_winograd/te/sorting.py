"""Sorting and running sums as sums over all pairs: n squared steps, all of them independent."""

from __future__ import annotations

from typing import Any

from tvm import te, tirx

LONGEST = 32768  # elements along the axis: more pairs would take seconds


def ranks(x: Any, axis: int, largest: bool) -> Any:
    """How many elements along `axis` come before each: int32, of x's shape.

    Equal ones keep their order; NaN counts as larger than all, as torch has it.
    """
    j = te.reduce_axis((0, x.shape[axis]), "j")

    def rank(*index: Any) -> Any:
        i, mine, other = index[axis], x(*index), x(*index[:axis], j, *index[axis + 1 :])
        before = _larger(other, mine) if largest else _larger(mine, other)
        first = tirx.Or(before, tirx.And(_equal(other, mine), j < i))
        return te.sum(first.astype("int32"), axis=j)

    return te.compute(x.shape, rank, name="rank")


def order(rank: Any, axis: int, count: int) -> Any:
    """Where the elements of the first `count` ranks lie along `axis`: int64."""
    j = te.reduce_axis((0, rank.shape[axis]), "j")
    shape = [*rank.shape]
    shape[axis] = count

    def place(*index: Any) -> Any:
        here = rank(*index[:axis], j, *index[axis + 1 :]) == index[axis].astype("int32")
        return te.sum(tirx.Select(here, j.astype("int64"), tirx.const(0, "int64")), axis=j)

    return te.compute(shape, place, name="order")


def running_sum(x: Any, axis: int, exclusive: bool, reverse: bool) -> Any:
    """The sum of the elements up to each along `axis`, or from it on; exclusive: without itself."""
    j = te.reduce_axis((0, x.shape[axis]), "j")

    def total(*index: Any) -> Any:
        near, far = (index[axis], j) if reverse else (j, index[axis])
        taken = near < far if exclusive else near <= far
        value = x(*index[:axis], j, *index[axis + 1 :])
        return te.sum(tirx.Select(taken, value, tirx.const(0, x.dtype)), axis=j)

    return te.compute(x.shape, total, name="running_sum")


def _larger(a: Any, b: Any) -> Any:
    if not _float(a):
        return a > b
    return tirx.Or(a > b, tirx.And(tirx.isnan(a), tirx.Not(tirx.isnan(b))))


def _equal(a: Any, b: Any) -> Any:
    """Not the negation of larger and smaller: TVM makes not (a < b) of floats b <= a."""
    same = a.equal(b)
    return tirx.Or(same, tirx.And(tirx.isnan(a), tirx.isnan(b))) if _float(a) else same


def _float(value: Any) -> bool:
    return str(value.ty.dtype).startswith("float")
