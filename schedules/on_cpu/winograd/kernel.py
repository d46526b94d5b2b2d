"""Winograd F(2x2, 3x3) on a CPU (Lavin and Gray, arXiv 1509.09308), in two steps.

1. Input transform: for each channel and block of tiles, gather the patches into rows along p (the
   only scalar part), then B^T d B with vectors along p: V (Pb, E, C, p_tile).
2. For each block of tiles and of filters: sixteen small GEMMs whose accumulators are registers
   (p_tile broadcasts x one or two vectors of filters), then A^T M A with vectors along k and the
   epilogue on the way to the output. M of one block (16, p_tile, k_tile) stays in L1.

Both in one parallel loop over the blocks of tiles (`fused`), or one after the other.
"""

from __future__ import annotations

from tvm_winograd.gpu import Cpu
from tvm_winograd.te import winograd

from ...base.blocks import Loop, Schedule, loops_inside, move, unroll
from ...base.kernel import Kernel
from ...base.stages import stage
from .config import WinogradCpuConfig, workspace
from .legal import illegal, supports
from .search import configs, not_worth, tried

__all__ = ["KERNEL", "WinogradCpuConfig", "configs", "illegal", "schedule"]


def schedule(sch: Schedule, config: WinogradCpuConfig, cpu: Cpu) -> None:
    """Schedule `te.winograd.tiled_prim_func(spec, epilogue, config.tiling)` in place."""
    tiles, block, tile = _tile_output(sch, config)
    _output_transform(sch, tile)
    _micro_kernel(sch, block)
    _input_transform(sch, tiles if config.fused else None)


@stage
def _tile_output(sch: Schedule, config: WinogradCpuConfig) -> tuple[Loop, Loop, Loop]:
    """Order pass 2; return the loops over (blocks of tiles, blocks of filters, p of a block).

    loops: kb k pb p i j of O -> parallel (pb, or kb pb), kb, p, a tile; leaves (tiles, block, p)
    """
    o = sch.get_sblock("wino_O")
    kb, k, pb, p, i, j = sch.get_loops(o)
    inner = (i, j, k) if sch.get(o).annotations["layout"] == "NHWC" else (k, i, j)
    unroll(sch, i, j)
    if config.fused:
        sch.reorder(pb, kb, p, *inner)
        sch.parallel(pb)
        return pb, kb, p
    sch.reorder(kb, pb, p, *inner)
    block = sch.fuse(kb, pb)
    sch.parallel(block)
    return block, block, p


@stage
def _input_transform(sch: Schedule, tiles: Loop | None) -> None:
    """V (Pb, E, C, p_tile) inside the loop `tiles`, or as a parallel pass of its own.

    (E, Pb, C, p_tile) would put the sixteen streams a multiple of 4 KB apart: they evict each
    other from L1 and take 1.4 times as long.

    loops: e pb c p of V inside tiles, or parallel (pb c); c gets the patches, p B^T d; leaves none
    """
    v, t, d = (sch.get_sblock(name) for name in ("wino_V", "wino_T", "wino_D"))
    sch.transform_layout(v, ("write", 0), lambda e, pb, c, p: (pb, e, c, p))
    if tiles is None:
        e, pb, c, p = sch.get_loops(v)
        sch.reorder(pb, c, p, e)
        channel = sch.fuse(pb, c)
        sch.parallel(channel)
    else:
        e, _, channel, p = move(sch, v, tiles)
        sch.reorder(channel, p, e)
    sch.unroll(e)
    unroll(sch, *move(sch, t, p))
    sch.set_scope(t, 0, "local")
    sch.transform_layout(d, ("write", 0), lambda c, p, a, b: (c, a, b, p))
    unroll(sch, *move(sch, d, channel)[-2:])


@stage
def _output_transform(sch: Schedule, tile: Loop) -> None:
    """A^T M A of one tile, vectors along k.

    loops: p gets i j of Y and Z, unrolled, k a vector; leaves none
    """
    y, z = sch.get_sblock("wino_Y"), sch.get_sblock("wino_Z")
    sch.transform_layout(y, ("write", 0), lambda kb, k, pb, p, i, j: (kb, pb, p, i, j, k))
    sch.transform_layout(z, ("write", 0), lambda kb, k, pb, p, i, b: (kb, pb, p, i, b, k))
    for block in (y, z):
        _, k, _, _, i, j = move(sch, block, tile)
        sch.reorder(i, j, k)
        sch.set_scope(block, 0, "local")
        unroll(sch, i, j)
        sch.vectorize(k)


@stage
def _micro_kernel(sch: Schedule, block: Loop) -> None:
    """M of one block: for each e, the sums over c in registers.

    loops: the block gets e c, then p unrolled and k a vector; leaves none
    """
    m = sch.get_sblock("wino_M")
    sch.transform_layout(m, ("write", 0), lambda e, kb, k, pb, p: (e, kb, pb, p, k))
    e, _, k, _, p, c = move(sch, m, block)
    sch.reorder(e, c, p, k)
    sch.unroll(p)
    sch.vectorize(k)
    init = sch.decompose_reduction(m, c)
    *_, p, k = loops_inside(sch, init, block)
    sch.unroll(p)
    sch.vectorize(k)


KERNEL = Kernel(
    name="winograd-cpu",
    algorithm="winograd-f2",
    target="llvm",
    config=WinogradCpuConfig,
    own_supports=supports,
    own_illegal=illegal,
    trial=tried,
    configs=configs,
    prim_func=lambda spec, epi, config: winograd.tiled_prim_func(spec, epi, config.tiling),
    schedule=schedule,
    pack_weights=lambda w, spec, config: winograd.pack_weights(w, spec, config.tiling),
    weight_func=lambda spec, config: winograd.weight_func(spec, config.tiling),
    not_worth=not_worth,
    workspace=workspace,
)
