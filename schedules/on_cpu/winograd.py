"""Winograd F(2x2, 3x3) on a CPU (Lavin and Gray, arXiv 1509.09308), in two steps.

1. Input transform: for each channel and block of tiles, gather the patches into rows along p (the
   only scalar part), then B^T d B with vectors along p: V (Pb, E, C, p_tile).
2. For each block of tiles and of filters: sixteen small GEMMs whose accumulators are registers
   (p_tile broadcasts x one or two vectors of filters), then A^T M A with vectors along k and the
   epilogue on the way to the output. M of one block (16, p_tile, k_tile) stays in L1.

Both in one parallel loop over the blocks of tiles (`fused`), or one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm_winograd.gpu import Cpu, Hardware
from tvm_winograd.shapes import ConvSpec, Epilogue
from tvm_winograd.te import winograd
from tvm_winograd.te.common import ceil_div

from ..base.blocks import loops_inside, move, too_large, unroll
from ..base.kernel import Kernel
from .tiles import FMA_LATENCY, REGISTER_TILE, uneven


@dataclass(frozen=True)
class WinogradCpuConfig:
    """Knobs of the CPU Winograd schedule."""

    lanes: int  # filters of one vector register, elements
    k_vectors: int  # vectors of filters in the register tile
    p_tile: int  # output tiles of the register tile
    fused: bool  # parallel over blocks of tiles, V made inside; else V first, then parallel over
    # (blocks of filters, blocks of tiles), so that a core's part of U stays in its cache

    @property
    def tiling(self) -> winograd.Tiling:
        return winograd.Tiling(
            2, (self.lanes * self.k_vectors,), (self.p_tile,), channel_outer=False
        )

    @property
    def accumulators(self) -> int:
        """Vector registers that hold sums."""
        return self.p_tile * self.k_vectors


def supports(spec: ConvSpec, epilogue: Epilogue, hardware: Hardware) -> str | None:
    """None, or the reason why not."""
    if not isinstance(hardware, Cpu):
        return f"winograd-cpu compiles for llvm, not for {hardware.arch}"
    if reason := winograd.applies(spec):
        return reason
    return None if configs(spec, hardware) else "U has 2^31 elements or more; indices are 32-bit"


def illegal(config: WinogradCpuConfig, spec: ConvSpec, hardware: Hardware) -> str | None:
    """None, or the reason why this config cannot compute `spec`."""
    if not isinstance(hardware, Cpu):
        return f"winograd-cpu compiles for llvm, not for {hardware.arch}"
    if min(config.lanes, config.k_vectors, config.p_tile) < 1:
        return f"all sizes must be positive: {config}"
    if config.accumulators > 64:
        return f"{config.accumulators} accumulators: more than 64 vectors only spill"
    z, points = winograd.sizes(spec, config.tiling), (config.tiling.m + 2) ** 2
    return too_large(max(points * z.c_pad * z.kb * z.bk, workspace(config, spec) // 4))


def configs(spec: ConvSpec, hardware: Hardware) -> list[WinogradCpuConfig]:
    """The legal configs worth trying, the default first."""
    assert isinstance(hardware, Cpu)
    lanes, (budget, preferred) = hardware.lanes, REGISTER_TILE[hardware.vector_bits]
    p = winograd.sizes(spec, winograd.Tiling()).p
    if p * preferred < FMA_LATENCY:
        preferred = 4
    out = []
    for vectors in sorted((1, 2, 4), key=lambda v: (v != preferred, v)):
        if vectors > 1 and spec.k % (vectors * lanes):
            continue
        p_tile, balanced = _tiles(p, budget // vectors, hardware.cores)
        for fused in (balanced, not balanced):
            out.append(WinogradCpuConfig(lanes, vectors, p_tile, fused))
    return [c for c in out if illegal(c, spec, hardware) is None]


def _tiles(p: int, most: int, cores: int) -> tuple[int, bool]:
    """(p_tile <= most in the fewest blocks, whether the blocks alone keep the cores busy).

    A few more, smaller blocks are taken if that gives every core as many: `fused` halves the time
    of 256 channels, 28x28 (4.5 instead of 8.8 ms, one core of an EPYC 9004).
    """
    blocks = ceil_div(p, most)
    if blocks < cores:
        return ceil_div(p, blocks), False
    rounds = ceil_div(blocks, cores)
    p_tile = ceil_div(p, rounds * cores)
    if p_tile < 0.75 * ceil_div(p, blocks):
        return ceil_div(p, blocks), not uneven(blocks, cores)
    return p_tile, True


def schedule(sch: Any, config: WinogradCpuConfig, hardware: Hardware) -> None:
    """Schedules `te.winograd.tiled_prim_func(spec, epilogue, config.tiling)` in place."""
    tiles, block, tile = _tile_output(sch, config)
    _output_transform(sch, tile)
    _micro_kernel(sch, block)
    _input_transform(sch, tiles if config.fused else None)


def _tile_output(sch: Any, config: WinogradCpuConfig) -> tuple[Any, Any, Any]:
    """Pass 2's loops; returns those over (blocks of tiles, blocks of filters, p of a block)."""
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


def _input_transform(sch: Any, tiles: Any | None) -> None:
    """V (Pb, E, C, p_tile) inside the loop `tiles`, or as a parallel pass of its own.

    (E, Pb, C, p_tile) would put the sixteen streams a multiple of 4 KB apart: they evict each
    other from L1 (64 channels, 56x56: 1.9 instead of 1.4 ms, one core of an EPYC 9004).
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


def _output_transform(sch: Any, tile: Any) -> None:
    """A^T M A of one tile, vectors along k."""
    y, z = sch.get_sblock("wino_Y"), sch.get_sblock("wino_Z")
    sch.transform_layout(y, ("write", 0), lambda kb, k, pb, p, i, j: (kb, pb, p, i, j, k))
    sch.transform_layout(z, ("write", 0), lambda kb, k, pb, p, i, b: (kb, pb, p, i, b, k))
    for block in (y, z):
        _, k, _, _, i, j = move(sch, block, tile)
        sch.reorder(i, j, k)
        sch.set_scope(block, 0, "local")
        unroll(sch, i, j)
        sch.vectorize(k)


def _micro_kernel(sch: Any, block: Any) -> None:
    """M of one block: for each e, the sums over c in registers."""
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


def not_worth(spec: ConvSpec, hardware: Hardware) -> str | None:
    """None, or why the direct kernel is the better choice.

    Measured on an EPYC 9004 with AVX-512 and with AVX2 code: 3 channels, 224x224, 64 filters 5.6 ms
    against 4.4 direct; from 8 channels on Winograd won on every map from 4x4 to 112x112.
    """
    if spec.c < 8:
        return f"the input transform costs more than it saves with {spec.c} channels (from 8 on)"
    return None


def workspace(config: WinogradCpuConfig, spec: ConvSpec) -> int:
    """Bytes of V, unless each tile's is made where it is used."""
    z = winograd.sizes(spec, config.tiling)
    points = (config.tiling.m + 2) ** 2
    return 0 if config.fused else 4 * points * z.c_pad * z.pb * z.bp


KERNEL = Kernel(
    name="winograd-cpu",
    algorithm="winograd-f2",
    target="llvm",
    config=WinogradCpuConfig,
    supports=supports,
    illegal=illegal,
    configs=configs,
    prim_func=lambda spec, epi, config: winograd.tiled_prim_func(spec, epi, config.tiling),
    schedule=schedule,
    pack_weights=lambda w, spec, config: winograd.pack_weights(w, spec, config.tiling),
    weight_func=lambda spec, config: winograd.weight_func(spec, config.tiling),
    not_worth=not_worth,
    workspace=workspace,
)
