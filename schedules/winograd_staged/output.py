"""The output transform of F(4x4) in three kernels: M -> O, direct or through shared memory."""

from __future__ import annotations

from ..base import blocks
from ..base.blocks import Loop, Schedule
from ..base.stages import stage
from .config import K_PAD, STORE_PAD, Staged


@stage
def bind(sch: Schedule, config: Staged) -> tuple[Loop, Loop, list[Loop]]:
    """Output tiles to chunks and blocks: `filters` x bp of them a block.

    loops: kb k1 k0 k2 pb p1 p0 p2 i j of O -> chunk, blockIdx.x; leaves (chunk, block, the rest)
    """
    block = sch.get_sblock("wino_O")
    kb, k1, k0, k2, pb, p1, p0, p2, i, j = sch.get_loops(block)
    chunk, pb = sch.split(pb, [config.chunks, None])
    k0_block, k0 = sch.split(k0, [None, max(1, config.filters // 4)])
    k2_block, k2 = sch.split(k2, [None, min(4, config.filters)])
    inner = [k0, k2, p1, p0, p2, i, j]
    sch.reorder(chunk, kb, k1, k0_block, k2_block, pb, *inner)
    fused = sch.fuse(kb, k1, k0_block, k2_block, pb)
    sch.bind(fused, "blockIdx.x")
    return chunk, fused, inner


@stage
def direct(sch: Schedule, config: Staged, layout: str, inner: list[Loop]) -> None:
    """A^T M A by the thread that stores the tile, whole rows of it if they are aligned.

    loops: [k0 k2 p1 p0 p2 i j] of a block -> a thread's turn, unrolled i, vector j; leaves none
    """
    width = int(sch.get(sch.get_sblock("wino_O")).writes[0].source.ty.shape[-1])
    k0, k2, p1, p0, p2, i, j = inner
    turn = deal_tiles(sch, config.threads, layout, [k0, k2], [p1, p0, p2], [i, j])
    blocks.unroll(sch, i)
    if layout == "NCHW" and width % 4 == 0:
        sch.vectorize(j)
    else:
        sch.unroll(j)
    for name in ("wino_Y", "wino_Z"):
        block = sch.get_sblock(name)
        loops = blocks.move(sch, block, turn)
        sch.set_scope(block, 0, "local")
        blocks.unroll(sch, *loops)


@stage
def through_shared(
    sch: Schedule, config: Staged, layout: str, block: Loop, inner: list[Loop]
) -> None:
    """A^T M A to shared memory, from where neighbouring threads take neighbours in memory.

    loops: the block, [k0 k2 p1 p0 p2 i j] of it -> turns of wino_Y, turns of wino_O; leaves none
    """
    warps = config.threads // blocks.WARP
    y, z = (sch.get_sblock(name) for name in ("wino_Y", "wino_Z"))
    *tile, i, j = blocks.move(sch, y, block)
    sch.set_scope(y, 0, "shared.dyn")
    sch.storage_align(y, 0, 7, 16, STORE_PAD)
    turn = blocks.deal(sch, tile, warps)
    blocks.unroll(sch, i)
    sch.vectorize(j)
    blocks.unroll(sch, *blocks.move(sch, z, turn))
    sch.set_scope(z, 0, "local")
    k0, k2, p1, p0, p2, i, j = inner
    outer, col = sch.split(sch.fuse(p1, p0, p2), [None, config.row])
    order = [k0, k2, outer, i, col, j]
    if layout == "NHWC":
        sch.storage_align(y, 0, 3, 32, K_PAD)
        order = [outer, i, col, j, k0, k2]
    sch.reorder(*order)
    blocks.deal(sch, order, warps)


def deal_tiles(
    sch: Schedule,
    threads: int,
    layout: str,
    channels: list[Loop],
    tiles: list[Loop],
    inner: list[Loop],
) -> Loop:
    """A block's (channel, tile) pairs to threads, lanes along tiles; returns the thread's turn.

    NHWC: lanes along 4 channels of 8 tiles, which reach 32-byte sectors on both sides.
    """
    if layout == "NHWC":
        together = sch.fuse(*channels)
        c, c_lane = sch.split(together, [None, min(4, blocks.extent(sch, together))])
        p, p_lane = sch.split(sch.fuse(*tiles), [None, 8])
        loops = [p, c, c_lane, p_lane]
    else:
        loops = [*channels, *tiles]
    sch.reorder(*loops, *inner)
    return blocks.deal(sch, loops, threads // blocks.WARP)
