"""Plain CPU schedule for whatever is not a convolution: outer loops in parallel."""

from __future__ import annotations

from typing import Any

from tvm_winograd.gpu import Cpu

_PER_THREAD = 4  # parallel iterations per core that balance the load
_SMALL = 16384  # iterations below which threads cost more than they give


def schedule(sch: Any, cpu: Cpu) -> None:
    """Fuse and parallelise the leading spatial loops of every block, in place."""
    for block in sch.get_child_blocks(sch.get_sblock("root")):
        loops = sch.get_loops(block)
        extents = [_extent(sch, loop) for loop in loops]
        spatial = _leading_spatial(sch, block, len(loops))
        if None in extents or not spatial or _product(extents) < _SMALL:
            continue
        count = 1
        while count < spatial and _product(extents[:count]) < _PER_THREAD * cpu.cores:
            count += 1
        sch.parallel(sch.fuse(*loops[:count]) if count > 1 else loops[0])


def _leading_spatial(sch: Any, block: Any, most: int) -> int:
    """How many outer loops are spatial (data-parallel)."""
    kinds = [int(v.iter_type) for v in sch.get(block).iter_vars]
    count = 0
    while count < min(most, len(kinds)) and kinds[count] == 0:
        count += 1
    return count


def _extent(sch: Any, loop: Any) -> int | None:
    extent = sch.get(loop).extent
    return int(extent) if hasattr(extent, "value") else None


def _product(values: Any) -> int:
    out = 1
    for value in values:
        out *= value
    return out
