"""The main loop of a register-tiled product on FMA units: an outer product of a thread a step.

`main_loop` is a stage that a main loop of other units can take the place of: it gets the block that
sums, the loops of one block's part of the result, and the order in which a thread keeps its own; it
leaves the loop over steps, where operands reach shared memory, and the loop inside a step, where
they reach what the units read.
"""

from __future__ import annotations

from typing import NamedTuple

from . import blocks
from .blocks import Block, Loop, Schedule
from .register_tile import RegisterTile
from .stages import stage


class BlockTile(NamedTuple):
    """The loops of one block's filters and pixels, adjacent; see blocks.py for the names."""

    k1: Loop
    k0: Loop
    k2: Loop
    p1: Loop
    p0: Loop
    p2: Loop


@stage
def main_loop(
    sch: Schedule,
    config: RegisterTile,
    sums: Block,
    tile: BlockTile,
    own: list[Loop],
    vector: bool,
) -> tuple[Loop, Loop]:
    """Owners of the result to warps and lanes; `sums` in registers, an outer product a product.

    loops: k1 k0 k2 p1 p0 p2 of a bound block -> warp, lane, `own`; leaves (step, product)

    Args:
        own: k1, k2, p1 and p2 in the order in which a thread stores them.
        vector: the last of them is one vector store; else it is unrolled.
    """
    lane = _bind_owners(sch, config, tile, own, vector)
    *outer, k1, k0, k2, pb, p1, p0, p2, q = blocks.move(sch, sums, lane)
    step, product = sch.split(q, [None, config.bc])
    inside = [*outer, k0, pb, p0, k1, p1, k2, p2]
    sch.reorder(step, product, *inside)
    blocks.unroll(sch, product, *inside)
    return step, product


def _bind_owners(
    sch: Schedule, config: RegisterTile, tile: BlockTile, own: list[Loop], vector: bool
) -> Loop:
    """Threads of a block to warps and lanes around what a thread stores; returns the lane."""
    count = {letter: 2 ** config.lanes.count(letter) for letter in "kp"}
    k_warp, k_lane = sch.split(tile.k0, [None, count["k"]])
    p_warp, p_lane = sch.split(tile.p0, [None, count["p"]])
    bits = blocks.interleave(sch, config.lanes, k=k_lane, p=p_lane)
    sch.reorder(k_warp, p_warp, *bits, *own)
    lane = sch.fuse(*bits)
    blocks.bind_warps(sch, sch.fuse(k_warp, p_warp), lane)
    *around, last = own
    blocks.unroll(sch, *around)
    (sch.vectorize if vector else sch.unroll)(last)
    return lane


def fragments(sch: Schedule, sums: Block, product: Loop) -> list[Block]:
    """A thread's operands of `sums` in registers, loaded by vectors inside the loop `product`."""
    loads = [sch.cache_read(sums, i, "local") for i in (0, 1)]
    for load in loads:
        *outer, vector = blocks.move(sch, load, product)
        blocks.unroll(sch, *outer)
        sch.vectorize(vector)
    return loads
