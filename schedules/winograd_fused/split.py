"""C in parts: what the fused kernel does instead of storing the output, and the kernel behind it.

    kernel 1   grid (p block, k block, part)    output tiles of a part -> workspace, by 16 bytes
    kernel 2   a thread a tile                  sum over the parts, epilogue, store

The workspace (S, K, P, m * m) is a buffer of the function: TVM takes it from the device's workspace
pool on the host, once a call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvm_winograd.gpu import Gpu
from tvm_winograd.te.common import product

from ..base import blocks
from ..base.blocks import Loop, Schedule
from ..base.stages import stage
from .output import split_rounds

if TYPE_CHECKING:
    from .config import FusedTile

_SUM_WARPS = 4  # of a block of the second kernel, fewer if that gives every SM a block


@stage
def bind_parts(sch: Schedule, config: FusedTile) -> tuple[Loop, Loop, Loop]:
    """Kernel 1's store, whole tiles to the workspace; returns (p block, k round, turn).

    Lanes run along the tiles, in which the workspace is contiguous, whatever the output's layout.

    loops: part kb k1 k0 k2 pb p1 p0 p2 i j -> grid (pb, kb, part); leaves (p block, round, turn)
    """
    store = sch.cache_write(sch.get_sblock("wino_Y"), 0, "local")
    part, k_block, k1, k0, k2, p_block, p1, p0, p2, i, j = sch.get_loops(store)
    rounds, k1, k2 = split_rounds(sch, config, k1, k2)
    tile = [k1, k0, k2, p1, p0, p2]
    sch.reorder(part, k_block, p_block, *rounds, *tile, i, j)
    k_round = sch.fuse(*rounds)
    for loop, axis in ((p_block, "blockIdx.x"), (k_block, "blockIdx.y"), (part, "blockIdx.z")):
        sch.bind(loop, axis)
    turn = blocks.deal(sch, tile, config.warps)
    blocks.unroll(sch, k_round)
    _sixteen_bytes(sch, i, j)
    return p_block, k_round, turn


@stage
def sum_parts(sch: Schedule, gpu: Gpu, layout: str) -> None:
    """Kernel 2: the parts of a tile to registers, all loads in flight, their sum, the output.

    loops: kb k1 k0 k2 pb p1 p0 p2 i j of O -> grid, a thread's turn, its tile unrolled; leaves none
    """
    out, total = sch.get_sblock("wino_O"), sch.get_sblock("wino_S")
    width = int(sch.get(out).writes[0].source.ty.shape[-1])
    k_block, k1, k0, k2, p_block, p1, p0, p2, i, j = sch.get_loops(out)
    tiles = product([blocks.extent(sch, loop) for loop in sch.get_loops(out)[:-2]])
    if layout == "NHWC":  # 32-byte sectors of the output, 64 bytes of the workspace
        k, k_lane = sch.split(sch.fuse(k1, k0, k2), [None, 8])
        p, p_lane = sch.split(sch.fuse(p1, p0, p2), [None, 4])
        inner = [p, k, k_lane, p_lane]
        sch.reorder(p_block, k_block, *inner, i, j)
        sch.bind(p_block, "blockIdx.x")  # apart: fused, TVM loses track of which tiles a thread has
        sch.bind(k_block, "blockIdx.y")
        axis = "blockIdx.z"
    else:
        inner = [sch.fuse(k_block, k1, k0, k2), sch.fuse(p_block, p1, p0, p2)]
        axis = "blockIdx.x"
    warps = _SUM_WARPS
    while warps > 1 and tiles < warps * blocks.WARP * gpu.sms:
        warps //= 2
    block, inner = sch.split(sch.fuse(*inner), [None, warps * blocks.WARP])
    sch.bind(block, axis)
    turn = blocks.deal(sch, [inner], warps)
    blocks.unroll(sch, i)
    whole = layout == "NCHW" and width % blocks.extent(sch, j) == 0
    (sch.vectorize if whole else sch.unroll)(j)
    parts = sch.cache_read(total, 0, "local")
    loops = blocks.move(sch, total, turn)
    sch.set_scope(total, 0, "local")
    blocks.unroll(sch, *loops)
    *loops, i, j = blocks.move(sch, parts, turn)
    blocks.unroll(sch, *loops)
    _sixteen_bytes(sch, i, j)


def _sixteen_bytes(sch: Schedule, i: Loop, j: Loop) -> None:
    """An m x m tile of the workspace, 4 words an access."""
    if blocks.extent(sch, j) == 2:
        j = sch.fuse(i, j)
    else:
        sch.unroll(i)
    sch.vectorize(j)
