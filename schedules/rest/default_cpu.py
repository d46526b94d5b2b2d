"""Plain CPU schedule for whatever is not a convolution: outer loops in parallel.

Long sums (the mean of a large map) are split into several that are added at the end, which loses
less: one sum of 4,096 terms is wrong by 1e-6, four times as much as a convolution.
"""

from __future__ import annotations

import math
from typing import Any

from tvm.tirx.analysis import undefined_vars

from tvm_winograd.gpu import Cpu
from tvm_winograd.te.common import product

from ..base import blocks
from . import dense_cpu, elementwise
from .cores import spread

_LONG = 256  # terms of a sum
_PARTS = "parts_of_sums"
_MOST_PARTS = 64  # of a long one, vectors of the machine


def schedule(sch: Any, cpu: Cpu) -> None:
    """Split long sums, fuse and parallelise the leading spatial loops of every block, in place."""
    every = elementwise.blocks_of(sch)
    products = [sch.get(b).name_hint for b in every if dense_cpu.takes(sch, b)]
    for block in every:
        if sch.get(block).name_hint not in products:
            _split_sum(sch, block)  # its parts become the first variable and the last loop
    for block in elementwise.gather(sch):
        if sch.get(block).name_hint in products:
            continue
        loops = sch.get_loops(block)
        extents = _extents(sch, loops)
        spatial = _leading_spatial(sch, block, len(loops)) - (_PARTS in sch.get(block).annotations)
        if extents is not None and spatial:
            spread(sch, loops[:spatial], product(extents), cpu)
    for name in products:
        dense_cpu.schedule(sch, sch.get_sblock(name), cpu)


def _split_sum(sch: Any, block: Any) -> None:
    """A long sum of one array over the last loops of a block, in parts of every sums-th term.

    It may be several sums of one loop: normalizations add up the terms and their squares.
    """
    node = sch.get(block)
    # no index of an extreme
    floats = all(str(w.source.ty.dtype).startswith("float") for w in node.writes)
    if node.init is None or _summed(node) != 1 or not floats:
        return
    loops = sch.get_loops(block)
    terms = loops[_leading_spatial(sch, block, len(loops)) :]
    extents = _extents(sch, terms)
    if extents is None or (n := product(extents)) < _LONG:
        return
    if set(blocks.kinds(sch, block)[len(loops) - len(terms) :]) != {blocks.REDUCE}:
        return
    sums = _parts(n)
    if sums == 1:
        return
    fused = sch.fuse(*terms) if len(terms) > 1 else terms[0]
    _, part = sch.split(fused, [None, sums])
    sch.annotate(sch.rfactor(part, 0), _PARTS, sums)


def _summed(node: Any) -> int:
    """How many arrays a block reads along its sum; a variance's mean is not one of them."""
    taken = [v.var for v in node.iter_vars if int(v.iter_type) == blocks.REDUCE]

    def along(region: Any) -> bool:
        places = [undefined_vars(r.min) for r in region.region]
        return any(v.same_as(used) for place in places for used in place for v in taken)

    return sum(along(region) for region in node.reads)


def _parts(terms: int) -> int:
    """How many sums share `terms` evenly: at most _MOST_PARTS, or the next; 1 for a prime."""
    candidates = *range(_MOST_PARTS, 1, -1), *range(_MOST_PARTS, math.isqrt(terms) + 1)
    return next((k for k in candidates if terms % k == 0), 1)


def _leading_spatial(sch: Any, block: Any, most: int) -> int:
    """How many outer loops are spatial (data-parallel)."""
    kinds = blocks.kinds(sch, block)
    count = 0
    while count < min(most, len(kinds)) and kinds[count] == blocks.SPATIAL:
        count += 1
    return count


def _extents(sch: Any, loops: list[Any]) -> list[int] | None:
    """None if one of them is dynamic."""
    if any(not hasattr(sch.get(loop).extent, "value") for loop in loops):
        return None
    return [blocks.extent(sch, loop) for loop in loops]
