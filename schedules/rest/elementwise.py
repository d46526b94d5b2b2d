"""Chains of element-wise operators: one pass over memory, each value computed once.

Inlining alone computes a value again for each of its uses: x * sigmoid(x), twenty times in a row,
is an expression of a million terms. A value that is read more often is kept in a register instead.
"""

from __future__ import annotations

from typing import Any

from tvm import ir, s_tir, tirx
from tvm.relax.analysis import post_order_visit

from tvm_winograd.te.common import product

from ..base import blocks
from ..base.blocks import Block, Schedule

_LARGE = 512  # operations of an output where all is inlined
_THREADS = 256


def inlined_size(sch: Schedule) -> int:
    """The operations of one output of a function of element-wise blocks, if all were inlined;
    0 if it is none."""
    sizes: dict[Any, int] = {}  # of each buffer
    size = 0
    for block in blocks_of(sch):
        if not _elementwise(sch, block):
            return 0
        node = sch.get(block)
        size = 1 + sum(sizes.get(load.source, 0) for load in _loads(node))
        sizes[node.writes[0].source] = size
    return size


def gather(sch: Schedule) -> list[Block]:
    """Computes every value where it is used, in place; returns the blocks that keep their loops.

    What is read once is inlined, the rest becomes a register in the innermost loop of its readers.
    A value stays an array of its own where that would compute it more often: where it is smaller
    than what reads it, or read at several places, or returned.
    """
    kept: list[Block] = []
    for block in reversed(blocks_of(sch)):
        if not _elementwise(sch, block) or not _moved(sch, block):
            kept.append(block)
    return kept[::-1]


def blocks_of(sch: Schedule) -> list[Block]:
    return list(sch.get_child_blocks(sch.get_sblock("root")))


def cuda(sch: Schedule) -> bool:
    """A thread an output; whether the function is of the kind."""
    if inlined_size(sch) <= _LARGE:
        return False
    for block in gather(sch):
        loops = sch.get_loops(block) or [sch.add_unit_loop(block)]
        outer, thread = sch.split(sch.fuse(*loops), [None, _THREADS])
        sch.bind(outer, "blockIdx.x")
        sch.bind(thread, "threadIdx.x")
    return True


def _moved(sch: Schedule, block: Block) -> bool:
    """Whether the block went to its readers."""
    readers = sch.get_consumers(block)
    if not all(_elementwise(sch, r) for r in readers) or not readers:
        return False
    if len({_points(sch, r) for r in (block, *readers)}) > 1:
        return False
    buffer = sch.get(block).writes[0].source
    uses = sum(load.source.same_as(buffer) for r in readers for load in _loads(sch.get(r)))
    if uses == 1:
        sch.compute_inline(block)
        return True
    return _staged(sch, block, readers[-1])


def _staged(sch: Schedule, block: Block, reader: Block) -> bool:
    """Whether the block became one register in the innermost loop of its last reader's nest."""
    loops = sch.get_loops(reader)
    if not loops:
        return False
    trial = sch.copy()
    try:
        trial.compute_at(block, loops[-1])
    except s_tir.ScheduleError:
        return False
    if len(trial.get_loops(block)) > len(loops):
        return False  # it is read at several places
    sch.compute_at(block, loops[-1])
    sch.set_scope(block, 0, "local")
    return True


def _points(sch: Schedule, block: Block) -> int:
    """How many elements a block writes."""
    return product([int(v.dom.extent) for v in sch.get(block).iter_vars])


def _elementwise(sch: Schedule, block: Block) -> bool:
    node = sch.get(block)
    fixed = all(isinstance(v.dom.extent, tirx.IntImm) for v in node.iter_vars)
    stores = isinstance(node.body, tirx.BufferStore)
    return fixed and stores and set(blocks.kinds(sch, block)) <= {blocks.SPATIAL}


def _loads(node: Any) -> list[Any]:
    """What an element-wise block reads, as often as it does."""
    found: list[Any] = []
    post_order_visit(node.body.value, lambda part: found.append(part))
    return [part for part in found if isinstance(part, ir.TensorLoad)]
