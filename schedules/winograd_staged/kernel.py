"""Winograd F(4x4, 3x3) in three CUDA kernels of one function, fp32 FMA.

    input transform   X -> V, a workspace   a thread a 6x6 patch
    batched GEMM      U, V -> M, likewise   36 products, one (eps, nu) a block
    output transform  M -> O                a thread a 4x4 tile; bias, residual and ReLU

    U       global  (36, Kb, C, tk/4, bk/tk, 4)      shared  (bc, tk/4, bk/tk, 4) a step
    V       global  (36, Pb, C, tp/4, bp/tp, 4)      shared  (bc, tp/4, bp/tp, 4) a step
    M       global  (36, Kb, tk/4, bk/tk, 4, Pb, tp/4, bp/tp, 4), K and P plain inside e

A step of the GEMM reads bc * bk and bc * bp consecutive words. V and M are buffers of the function:
a network's memory planner owns them; a convolution compiled alone takes them from TVM's workspace
pool. With `chunks` the three kernels run in a loop on the host and share workspaces of one chunk.
"""

from __future__ import annotations

from typing import Any

from tvm_winograd.gpu import Gpu, Hardware
from tvm_winograd.shapes import ConvSpec, Epilogue
from tvm_winograd.te import winograd

from ..base import blocks
from ..base.blocks import Loop, Schedule
from ..base.kernel import Kernel
from .config import (
    K_PAD,
    STORE_PAD,
    Staged,
    configs,
    default,
    illegal,
    portable,
    seconds,
    workspace,
)

__all__ = ["KERNEL", "Staged", "configs", "default", "illegal", "portable", "schedule", "supports"]


def supports(spec: ConvSpec, epilogue: Epilogue, hw: Hardware) -> str | None:
    """None, or why this kernel cannot compute `spec` on `hw`."""
    if hw.kind != "cuda":
        return f"a CUDA kernel, got a {hw.kind} target"
    if reason := winograd.applies(spec):
        return reason
    return illegal(portable(spec), spec, hw)


def prim_func(spec: ConvSpec, epilogue: Epilogue, config: Staged) -> Any:
    """main(X, U[, B][, R], O), unscheduled."""
    return winograd.tiled_prim_func(spec, epilogue, config.tiling)


def schedule(sch: Schedule, config: Staged, gpu: Gpu) -> None:
    """Schedule `prim_func(spec, epilogue, config)` in place."""
    layout = str(sch.get(sch.get_sblock("wino_O")).annotations["layout"])
    chunk, block, inner = _output_blocks(sch, config)
    if config.row:
        _output_through_shared(sch, config, layout, block, inner)
    else:
        _output_direct(sch, config, layout, inner)
    step, channel = _gemm_tile(sch, config, chunk)
    blocks.move(sch, sch.get_sblock("wino_V"), chunk)
    _stage_operands(sch, config, step, channel)
    sch.decompose_reduction(sch.get_sblock("wino_M"), step)
    _input_transform(sch, config, layout)


def _output_blocks(sch: Schedule, config: Staged) -> tuple[Loop, Loop, list[Loop]]:
    """Output tiles to chunks and blocks: `filters` x bp of them a block.

    Returns (chunk, the block's loop, the loops inside it: k0, k2, p1, p0, p2, i, j).
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


def _output_direct(sch: Schedule, config: Staged, layout: str, inner: list[Loop]) -> None:
    """A^T M A by the thread that stores the tile, whole rows of it if they are aligned."""
    width = int(sch.get(sch.get_sblock("wino_O")).writes[0].source.ty.shape[-1])
    k0, k2, p1, p0, p2, i, j = inner
    turn = _deal_tiles(sch, config.threads, layout, [k0, k2], [p1, p0, p2], [i, j])
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


def _output_through_shared(
    sch: Schedule, config: Staged, layout: str, block: Loop, inner: list[Loop]
) -> None:
    """A^T M A to shared memory, from where neighbouring threads take neighbours in memory."""
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


def _deal_tiles(
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


def _gemm_tile(sch: Schedule, config: Staged, chunk: Loop) -> tuple[Loop, Loop]:
    """M in registers, an outer product a channel; returns the loops (step, channel in step)."""
    m = sch.get_sblock("wino_M")
    store = sch.cache_write(m, 0, "local")
    e, kb, k1, k0, k2, pb, p1, p0, p2 = blocks.move(sch, store, chunk)
    count = {letter: 2 ** config.lanes.count(letter) for letter in "kp"}
    k_warp, k0 = sch.split(k0, [None, count["k"]])
    p_warp, p0 = sch.split(p0, [None, count["p"]])
    bits = blocks.interleave(sch, config.lanes, k=k0, p=p0)
    sch.reorder(e, kb, pb, k_warp, p_warp, *bits, k1, k2, p1, p2)
    for loop, axis in ((pb, "blockIdx.x"), (kb, "blockIdx.y"), (e, "blockIdx.z")):
        sch.bind(loop, axis)
    lane = sch.fuse(*bits)
    blocks.bind_warps(sch, sch.fuse(k_warp, p_warp), lane)
    blocks.unroll(sch, k1, k2, p1)
    sch.vectorize(p2)
    *outer, k1, k0, k2, pb, p1, p0, p2, c = blocks.move(sch, m, lane)
    step, channel = sch.split(c, [None, config.bc])
    tile = [*outer, k0, pb, p0, k1, p1, k2, p2]
    sch.reorder(step, channel, *tile)
    blocks.unroll(sch, channel, *tile)
    return step, channel


def _stage_operands(sch: Schedule, config: Staged, step: Loop, channel: Loop) -> None:
    """U and V to shared memory, `buffers` - 1 steps ahead, and their fragments to registers."""
    m = sch.get_sblock("wino_M")
    fragments = [sch.cache_read(m, i, "local") for i in (0, 1)]
    shared = [sch.cache_read(fragment, 0, "shared.dyn") for fragment in fragments]
    for fragment in fragments:
        *outer, vector = blocks.move(sch, fragment, channel)
        blocks.unroll(sch, *outer)
        sch.vectorize(vector)
    copies = shared
    stage, order = [0, 0, config.buffers - 1], [0, 1, 2]
    if config.copies == "registers":
        copies = [c for s in shared for c in (s, sch.cache_read(s, 0, "local"))]
        stage, order = [0, 1, 0, 1, 1], [2, 0, 3, 1, 4]
    for copy in copies:
        blocks.deal(sch, blocks.move(sch, copy, step), config.warps, vector=4)
    blocks.pipeline(sch, step, stage, order, copies_async=config.copies == "async")


def _input_transform(sch: Schedule, config: Staged, layout: str) -> None:
    """V = B^T d B, a thread a patch of `channels` x bp a block."""
    v, t, d = (sch.get_sblock(name) for name in ("wino_V", "wino_T", "wino_D"))
    *_, e, pb, c, p1, p0, p2 = sch.get_loops(v)
    c_block, c = sch.split(c, [None, config.channels])
    sch.reorder(pb, c_block, c, p1, p0, p2, e)
    sch.bind(sch.fuse(pb, c_block), "blockIdx.x")
    turn = _deal_tiles(sch, config.threads, layout, [c], [p1, p0, p2], [e])
    sch.unroll(e)
    for block in (t, d):
        blocks.unroll(sch, *blocks.move(sch, block, turn))
        sch.set_scope(block, 0, "local")


KERNEL = Kernel(
    name="winograd-f4-staged",
    algorithm="winograd-f4",
    target="cuda",
    config=Staged,
    supports=supports,
    illegal=illegal,
    configs=configs,
    prim_func=prim_func,
    schedule=schedule,
    pack_weights=lambda w, spec, config: winograd.pack_weights(w, spec, config.tiling),
    weight_func=lambda spec, config: winograd.weight_func(spec, config.tiling),
    pass_config=blocks.ASYNC_COPY,
    seconds=seconds,
    workspace=workspace,
)
