"""Convolution over windows in memory order on a CPU (im2win): register tile of pixels by filters.

The micro-kernel broadcasts one word of a window per pixel and multiplies it with a vector of
packed weights; both walk through memory word by word, in one loop over the whole window.
"""

from __future__ import annotations

from typing import Any

from tvm_winograd.gpu import Cpu
from tvm_winograd.te import im2win

from ...base.blocks import Block, Loop, Schedule, move, unroll
from ...base.kernel import Kernel
from ...base.stages import stage
from .config import Im2winCpu, workspace
from .legal import illegal, supports
from .search import configs

__all__ = ["KERNEL", "Im2winCpu", "configs", "illegal", "schedule"]


def schedule(sch: Schedule, config: Im2winCpu, cpu: Cpu) -> None:
    """Schedule `te.im2win.prim_func(spec, epilogue, tiling)` in place."""
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


@stage
def _tile_output(sch: Schedule, config: Im2winCpu) -> tuple[Loop, Loop]:
    """Order the output's loops; return (the parallel loop, that over register tiles).

    loops: kb ki hb wb hi wi of O -> parallel (hb, or kb hb), tiles, a tile; leaves those two
    """
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


@stage
def _sum_parts(sch: Schedule, config: Im2winCpu, tile: Loop) -> Loop:
    """win_S in registers; return the loop over parts.

    loops: tile gets part, then kb ki hb wb hi wi in registers; leaves part
    """
    sums = sch.get_sblock("win_S")
    *outer, part = move(sch, sums, tile)
    sch.set_scope(sums, 0, "local")
    sch.reorder(part, *outer)
    _registers(sch, config, outer)
    _clear(sch, sch.decompose_reduction(sums, part))
    return part


@stage
def _micro_kernel(sch: Schedule, config: Im2winCpu, anchor: Loop) -> None:
    """win_Y in registers: one loop over the window's words outside, pixels x filters inside.

    loops: anchor gets step, (s r c) or (c s r) fused, then the tile in registers; leaves none
    """
    y = sch.get_sblock("win_Y")
    *tile, step, c, s, r = move(sch, y, anchor)
    sch.set_scope(y, 0, "local")
    sch.reorder(step, *((s, r, c) if config.channels_last else (c, s, r)), *tile)
    sch.fuse(*((s, r, c) if config.channels_last else (c, s, r)))
    _registers(sch, config, tile[-6:])
    _clear(sch, sch.decompose_reduction(y, step))


def _registers(sch: Schedule, config: Im2winCpu, loops: list[Loop]) -> None:
    """(kb, ki, hb, wb, hi, wi): pixels unrolled, filters vectors."""
    kb, ki, *pixels = loops
    outer, lanes = sch.split(ki, [None, config.lanes])
    sch.reorder(kb, *pixels, outer, lanes)
    unroll(sch, kb, *pixels, outer)
    sch.vectorize(lanes)


def _clear(sch: Schedule, init: Block) -> None:
    """The first values of a register tile whose loops are those of `_registers`."""
    *outer, lanes = sch.get_loops(init)[-7:]
    unroll(sch, *outer)
    sch.vectorize(lanes)


@stage
def _transform(sch: Schedule, config: Im2winCpu, rows: Loop) -> None:
    """win_I for the rows of a parallel task, or as a parallel pass over rows.

    loops: rows gets all of I, or I's outer loops are parallel; leaves none
    """
    windows = sch.get_sblock("win_I")
    if config.fused:
        move(sch, windows, rows)
        return
    loops = sch.get_loops(windows)
    if config.channels_last:
        sch.parallel(loops[0])
    else:
        sch.parallel(sch.fuse(*loops[:2]))


KERNEL = Kernel(
    name="im2win-cpu",
    algorithm="im2win",
    target="llvm",
    config=Im2winCpu,
    own_supports=supports,
    own_illegal=illegal,
    trial=lambda spec, cpu: configs(spec, cpu)[:1],
    configs=configs,
    prim_func=lambda spec, epilogue, config: im2win.prim_func(spec, epilogue, config.tiling(spec)),
    schedule=schedule,
    pack_weights=lambda w, spec, config: im2win.pack_weights(w, spec, config.tiling(spec)),
    weight_func=lambda spec, config: im2win.weight_func(spec, config.tiling(spec)),
    not_worth=lambda spec, hardware: "im2win is taken from a tuning log only; ask for im2win",
    workspace=workspace,
)
