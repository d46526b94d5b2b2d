"""Loops of the CPU that run in parallel, where that pays."""

from __future__ import annotations

from collections.abc import Sequence

from tvm_winograd.gpu import Cpu
from tvm_winograd.te.common import product

from ..base import blocks
from ..base.blocks import Loop, Schedule

_PER_CORE = 4  # parallel iterations per core that balance the load
_SMALL = 16384  # iterations below which threads cost more than they give


def spread(sch: Schedule, loops: Sequence[Loop], iterations: int, cpu: Cpu) -> None:
    """Run the outermost of adjacent loops in parallel, as many as give every core enough.

    Args:
        iterations: of all loops, with those inside.
    """
    extents = [blocks.extent(sch, loop) for loop in loops]
    if product(extents) == 1 or iterations < _SMALL:
        return
    count = 1
    while count < len(loops) and product(extents[:count]) < _PER_CORE * cpu.cores:
        count += 1
    sch.parallel(sch.fuse(*loops[:count]) if count > 1 else loops[0])
