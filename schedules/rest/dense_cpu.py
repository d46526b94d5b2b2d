"""Products of matrices on the CPU: neighbouring columns in vectors, long sums in parts.

Plain loops read a column of B with a cache line for each element, and one long sum errs several
times as much as parts of it that are added.
"""

from __future__ import annotations

from typing import Any

from tvm.tirx.analysis import undefined_vars

from tvm_winograd.gpu import Cpu
from tvm_winograd.te.common import product

from ..base import blocks
from ..base.blocks import Block, Schedule
from .cores import spread

_COLUMNS = range(16, 65)  # that a core sums at once, in registers
_TERMS = range(16, 65)  # of a sum


def takes(sch: Schedule, block: Block) -> bool:
    """Whether a block is C[.., i, j] = sum over k of A[.., i, k] * B[.., k, j]."""
    return _shared(sch.get(block)) is not None and all(
        hasattr(sch.get(loop).extent, "value") for loop in sch.get_loops(block)
    )


def schedule(sch: Schedule, block: Block, cpu: Cpu) -> None:
    """A few columns of B for all rows of A that use it, a part of the sum after the other."""
    shared = _shared(sch.get(block))
    assert shared is not None
    *_, column, term = loops = sch.get_loops(block)
    iterations = product([blocks.extent(sch, loop) for loop in loops])
    columns, terms = blocks.extent(sch, column), blocks.extent(sch, term)
    few = max((n for n in _TERMS if terms % n == 0), default=terms)
    part, _ = sch.split(term, [None, few])
    partial = sch.rfactor(part, 0)
    *rows, column, part = sch.get_loops(block)
    lanes = max(
        (n for n in _COLUMNS if columns % n == 0),
        key=_whole_vectors,
        default=min(columns, _COLUMNS[-1]),
    )
    column, lane = sch.split(column, [None, lanes])
    outer = [row for i, row in enumerate(rows) if i in shared]
    inner = [row for i, row in enumerate(rows) if i not in shared]
    sch.reorder(*outer, column, *inner, part, lane)
    *_, sums, term = blocks.move(sch, partial, part)
    sch.reorder(term, sums)
    sch.set_scope(partial, 0, "local")
    if lanes % 8 == 0 and columns % lanes == 0:
        sch.vectorize(lane)
        sch.vectorize(sums)
    spread(sch, [*outer, column, *inner], iterations, cpu)
    sch.decompose_reduction(partial, term)
    sch.decompose_reduction(block, part)


def _whole_vectors(lanes: int) -> tuple[bool, bool, int]:
    """What to prefer: whole vectors of 16 or 8, then many."""
    return lanes % 16 == 0, lanes % 8 == 0, lanes


def _shared(node: Any) -> set[int] | None:
    """Which of a product's rows' variables B depends on; None if `node` is no such product."""
    kinds = [int(v.iter_type) for v in node.iter_vars]
    if kinds[-2:] != [blocks.SPATIAL, blocks.REDUCE] or blocks.REDUCE in kinds[:-1]:
        return None
    if node.init is None or len(node.reads) != 2:
        return None
    *rows, column, term = (v.var for v in node.iter_vars)
    for matrix, other in (node.reads, node.reads[::-1]):
        *places, last = (r.min for r in matrix.region)
        used = [v for place in places for v in undefined_vars(place)]
        others = [v for r in other.region for v in undefined_vars(r.min)]
        if last.same_as(column) and _among(term, used) and not _among(column, others):
            return {i for i, row in enumerate(rows) if _among(row, used)}
    return None


def _among(variable: Any, found: list[Any]) -> bool:
    return any(variable.same_as(v) for v in found)
