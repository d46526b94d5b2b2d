"""Convolution over windows in memory order on a CPU (im2win): register tile of pixels by filters.

The micro-kernel broadcasts one word of a window per pixel and multiplies it with a vector of
packed weights; both walk through memory word by word, in one loop over the whole window.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tvm_winograd.gpu import Cpu, Hardware
from tvm_winograd.shapes import ConvSpec, Epilogue
from tvm_winograd.te import im2win
from tvm_winograd.te.common import ceil_div

from ..base.blocks import move, too_large, unroll
from ..base.kernel import Kernel
from .tiles import REGISTER_TILE, pixel_tile, uneven

_LONGEST_SUM = 1280  # products: 1,152 err 6.1e-7, and it grows with the square root


@dataclass(frozen=True)
class Im2winCpu:
    """Knobs of the im2win CPU schedule."""

    lanes: int  # filters of one vector register
    k_vectors: int  # vectors of filters in the register tile
    h_tile: int  # output rows of the register tile
    w_tile: int  # output columns of the register tile
    channels_last: bool  # windows as (s, r, c), else c planes of (s, r)
    fused: bool  # windows of h_tile rows at a time, inside the parallel loop; else all before it
    parts: int = 1  # of C, summed one by one

    def tiling(self, spec: ConvSpec) -> im2win.Tiling:
        channels = ceil_div(spec.c, self.parts) if self.channels_last else 1
        return im2win.Tiling(
            (self.lanes * self.k_vectors,), (self.h_tile,), (self.w_tile,), channels,
            parts=self.parts, channels_last=self.channels_last,
        )  # fmt: skip

    @property
    def accumulators(self) -> int:
        """Vector registers that hold sums."""
        return self.h_tile * self.w_tile * self.k_vectors

    def workspace_bytes(self, spec: ConvSpec) -> int:
        """Memory of the windows; of each thread when `fused`."""
        z = im2win.sizes(spec, self.tiling(spec))
        return 4 * z.workspace // (z.hb if self.fused else 1)


def supports(spec: ConvSpec, epilogue: Epilogue, hardware: Hardware) -> str | None:
    """None, or the reason why not."""
    if not isinstance(hardware, Cpu):
        return f"im2win-cpu compiles for llvm, not for {hardware.arch}"
    return im2win.applies(spec) or illegal(configs(spec, hardware)[0], spec, hardware)


def illegal(config: Im2winCpu, spec: ConvSpec, hardware: Hardware) -> str | None:
    """None, or the reason why this config cannot compute `spec`."""
    if not isinstance(hardware, Cpu):
        return f"im2win-cpu compiles for llvm, not for {hardware.arch}"
    if min(config.lanes, config.k_vectors, config.h_tile, config.w_tile, config.parts) < 1:
        return f"all sizes must be positive: {config}"
    if config.accumulators > 64:
        return f"{config.accumulators} accumulators: more than 64 vectors only spill"
    z = im2win.sizes(spec, config.tiling(spec))
    return too_large(max(z.workspace, z.kb * z.bk * z.products))


def configs(spec: ConvSpec, hardware: Hardware) -> list[Im2winCpu]:
    """Those worth trying, the default first."""
    assert isinstance(hardware, Cpu)
    lanes, (budget, preferred) = hardware.lanes, REGISTER_TILE[hardware.vector_bits]
    out = []
    for vectors in sorted((1, 2, 4), key=lambda v: (v != preferred, v)):
        if vectors > 1 and spec.k % (vectors * lanes):
            continue
        h, w = _pixels(spec, vectors, budget)
        fused = not uneven(ceil_div(spec.n * spec.oh, h), hardware.cores)
        nhwc = spec.layout == "NHWC"
        first = Im2winCpu(lanes, vectors, h, w, nhwc, fused, _parts(spec))
        other = replace(first, channels_last=not nhwc)
        out += [first, other, *(replace(c, fused=not fused) for c in (first, other))]
    return out


def schedule(sch: Any, config: Im2winCpu, hardware: Hardware) -> None:
    """Schedules `te.im2win.prim_func(spec, epilogue, tiling)` in place."""
    for name in ("win_Y", "win_S")[: 1 + (config.parts > 1)]:
        sch.transform_layout(sch.get_sblock(name), ("write", 0), _filters_last)
    rows, filters = _tile_output(sch, config)
    anchor = _sum_parts(sch, config, filters) if config.parts > 1 else filters
    _micro_kernel(sch, config, anchor)
    _transform(sch, config, rows)


def _filters_last(*index: Any) -> tuple[Any, ...]:
    """Sums ([part,] kb, ki, hb, wb, hi, wi) with vectors of filters as neighbours."""
    *part, kb, ki, hb, wb, hi, wi = index
    return (*part, kb, hb, wb, hi, wi, ki)


def _tile_output(sch: Any, config: Im2winCpu) -> tuple[Any, Any]:
    """Orders the output's loops; returns (the parallel loop, that over register tiles)."""
    store = sch.get_sblock("win_O")
    kb, ki, hb, wb, hi, wi = sch.get_loops(store)
    inner = (hi, wi, ki) if sch.get(store).annotations["layout"] == "NHWC" else (ki, hi, wi)
    if config.fused:
        sch.reorder(hb, wb, kb, *inner)
        sch.parallel(hb)
        return hb, kb
    sch.reorder(kb, hb, wb, *inner)
    tiles = sch.fuse(kb, hb)
    sch.parallel(tiles)
    return tiles, wb


def _sum_parts(sch: Any, config: Im2winCpu, tile: Any) -> Any:
    """win_S in registers; returns the loop over parts."""
    sums = sch.get_sblock("win_S")
    *outer, part = move(sch, sums, tile)
    sch.set_scope(sums, 0, "local")
    sch.reorder(part, *outer)
    _registers(sch, config, outer)
    _clear(sch, sch.decompose_reduction(sums, part))
    return part


def _micro_kernel(sch: Any, config: Im2winCpu, anchor: Any) -> None:
    """win_Y in registers: one loop over the window's words outside, pixels x filters inside."""
    y = sch.get_sblock("win_Y")
    *tile, step, c, s, r = move(sch, y, anchor)
    sch.set_scope(y, 0, "local")
    sch.reorder(step, *((s, r, c) if config.channels_last else (c, s, r)), *tile)
    sch.fuse(*((s, r, c) if config.channels_last else (c, s, r)))
    _registers(sch, config, tile[-6:])
    _clear(sch, sch.decompose_reduction(y, step))


def _registers(sch: Any, config: Im2winCpu, loops: list[Any]) -> None:
    """(kb, ki, hb, wb, hi, wi): pixels unrolled, filters vectors."""
    kb, ki, *pixels = loops
    outer, lanes = sch.split(ki, [None, config.lanes])
    sch.reorder(kb, *pixels, outer, lanes)
    unroll(sch, kb, *pixels, outer)
    sch.vectorize(lanes)


def _clear(sch: Any, init: Any) -> None:
    """The first values of a register tile whose loops are those of `_registers`."""
    *outer, lanes = sch.get_loops(init)[-7:]
    unroll(sch, *outer)
    sch.vectorize(lanes)


def _transform(sch: Any, config: Im2winCpu, rows: Any) -> None:
    """win_I for the rows of a parallel task, or as a parallel pass over rows."""
    windows = sch.get_sblock("win_I")
    if config.fused:
        move(sch, windows, rows)
        return
    loops = sch.get_loops(windows)
    if config.channels_last:
        sch.parallel(loops[0])
    else:
        sch.parallel(sch.fuse(*loops[:2]))


def _parts(spec: ConvSpec) -> int:
    """The fewest equal parts of C whose sums are short."""
    fewest = ceil_div(spec.c * spec.r * spec.s, _LONGEST_SUM)
    return next((d for d in range(fewest, spec.c + 1) if spec.c % d == 0), spec.c)


def _pixels(spec: ConvSpec, vectors: int, budget: int) -> tuple[int, int]:
    """(h_tile, w_tile) that covers the map in the fewest cycles, then with the fewest rows."""
    return pixel_tile(spec.n * spec.oh, spec.ow, vectors, budget, then=lambda h, w: h)


KERNEL = Kernel(
    name="im2win-cpu",
    algorithm="im2win",
    target="llvm",
    config=Im2winCpu,
    supports=supports,
    illegal=illegal,
    configs=configs,
    prim_func=lambda spec, epilogue, config: im2win.prim_func(spec, epilogue, config.tiling(spec)),
    schedule=schedule,
    pack_weights=lambda w, spec, config: im2win.pack_weights(w, spec, config.tiling(spec)),
    weight_func=lambda spec, config: im2win.weight_func(spec, config.tiling(spec)),
    not_worth=lambda spec, hardware: "im2win is taken from a tuning log only; ask for im2win",
    workspace=lambda config, spec: 0 if config.fused else config.workspace_bytes(spec),
)
