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

from tvm_winograd.gpu import Gpu
from tvm_winograd.shapes import ConvSpec, Epilogue
from tvm_winograd.te import winograd

from ..base import blocks, mainloop_fma
from ..base.blocks import Block, Loop, Schedule
from ..base.kernel import Kernel
from ..base.mainloop_fma import BlockTile
from ..base.stages import stage
from . import output
from .config import Staged
from .cost import seconds, workspace
from .legal import illegal, needs, supports
from .search import configs, default, portable

__all__ = ["KERNEL", "Staged", "configs", "default", "illegal", "portable", "schedule"]


def prim_func(spec: ConvSpec, epilogue: Epilogue, config: Staged) -> Any:
    """main(X, U[, B][, R], O), unscheduled."""
    return winograd.tiled_prim_func(spec, epilogue, config.tiling)


def schedule(sch: Schedule, config: Staged, gpu: Gpu) -> None:
    """Schedule `prim_func(spec, epilogue, config)` in place."""
    layout = str(sch.get(sch.get_sblock("wino_O")).annotations["layout"])
    chunk, block, inner = output.bind(sch, config)
    if config.row:
        output.through_shared(sch, config, layout, block, inner)
    else:
        output.direct(sch, config, layout, inner)
    m, tile = _gemm_grid(sch, config, chunk)
    own = [tile.k1, tile.k2, tile.p1, tile.p2]
    step, channel = mainloop_fma.main_loop(sch, config, m, tile, own, vector=True)
    blocks.move(sch, sch.get_sblock("wino_V"), chunk)
    _stage_operands(sch, config, step, channel)
    blocks.initialise(sch, m, step)
    _input_transform(sch, config, layout)


@stage
def _gemm_grid(sch: Schedule, config: Staged, chunk: Loop) -> tuple[Block, BlockTile]:
    """M from registers; a block has bk filters x bp tiles of one (eps, nu).

    loops: chunk; e kb k1 k0 k2 pb p1 p0 p2 of M -> grid (pb, kb, e); leaves k1 k0 k2 p1 p0 p2
    """
    m = sch.get_sblock("wino_M")
    store = sch.cache_write(m, 0, "local")
    e, kb, k1, k0, k2, pb, p1, p0, p2 = blocks.move(sch, store, chunk)
    sch.reorder(e, kb, pb, k0, p0, k1, k2, p1, p2)
    for loop, axis in ((pb, "blockIdx.x"), (kb, "blockIdx.y"), (e, "blockIdx.z")):
        sch.bind(loop, axis)
    return m, BlockTile(k1, k0, k2, p1, p0, p2)


@stage
def _stage_operands(sch: Schedule, config: Staged, step: Loop, channel: Loop) -> None:
    """U and V to shared memory, `buffers` - 1 steps ahead, and their fragments to registers.

    loops: step gets the copies of U and V, pipelined; channel gets the fragments; leaves none
    """
    fragments = mainloop_fma.fragments(sch, sch.get_sblock("wino_M"), channel)
    shared = [sch.cache_read(fragment, 0, "shared.dyn") for fragment in fragments]
    copies = shared
    stages, order = [0, 0, config.buffers - 1], [0, 1, 2]
    if config.copies == "registers":
        copies = [c for s in shared for c in (s, sch.cache_read(s, 0, "local"))]
        stages, order = [0, 1, 0, 1, 1], [2, 0, 3, 1, 4]
    for copy in copies:
        blocks.deal(sch, blocks.move(sch, copy, step), config.warps, vector=4)
    blocks.pipeline(sch, step, stages, order, copies_async=config.copies == "async")


@stage
def _input_transform(sch: Schedule, config: Staged, layout: str) -> None:
    """V = B^T d B, a thread a patch of `channels` x bp a block.

    loops: e pb c p1 p0 p2 of V -> blockIdx.x (pb, c), a thread's turns, unrolled e; leaves none
    """
    v, t, d = (sch.get_sblock(name) for name in ("wino_V", "wino_T", "wino_D"))
    *_, e, pb, c, p1, p0, p2 = sch.get_loops(v)
    c_block, c = sch.split(c, [None, config.channels])
    sch.reorder(pb, c_block, c, p1, p0, p2, e)
    sch.bind(sch.fuse(pb, c_block), "blockIdx.x")
    turn = output.deal_tiles(sch, config.threads, layout, [c], [p1, p0, p2], [e])
    sch.unroll(e)
    for block in (t, d):
        blocks.unroll(sch, *blocks.move(sch, block, turn))
        sch.set_scope(block, 0, "local")


KERNEL = Kernel(
    name="winograd-f4-staged",
    algorithm="winograd-f4",
    target="cuda",
    config=Staged,
    own_supports=supports,
    own_illegal=illegal,
    needs=needs,
    trial=lambda spec, gpu: [portable(spec)],
    configs=configs,
    prim_func=prim_func,
    schedule=schedule,
    pack_weights=lambda w, spec, config: winograd.pack_weights(w, spec, config.tiling),
    weight_func=lambda spec, config: winograd.weight_func(spec, config.tiling),
    pass_config=blocks.ASYNC_COPY,
    seconds=seconds,
    workspace=workspace,
)
