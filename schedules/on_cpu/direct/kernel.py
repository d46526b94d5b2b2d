"""Direct convolution on a CPU: a register tile of (h_tile x w_tile) pixels by k_tile filters.

The micro-kernel broadcasts one input value per pixel and multiplies it with a vector of packed
weights; its accumulators stay in registers over the whole (r, s, c) reduction. c is innermost on
purpose: with s innermost LLVM unrolls it, shares input values between filter taps and spills the
accumulators, which takes three times as long.
"""

from __future__ import annotations

from tvm import ir

from tvm_winograd.gpu import Cpu
from tvm_winograd.te import direct

from ...base.blocks import Block, Loop, Schedule, move
from ...base.kernel import Kernel
from ...base.stages import stage
from .config import DirectCpuConfig, workspace
from .legal import illegal, supports
from .search import configs, tried

__all__ = ["KERNEL", "DirectCpuConfig", "configs", "illegal", "schedule"]


def schedule(sch: Schedule, config: DirectCpuConfig, cpu: Cpu) -> None:
    """Schedule `te.direct.prim_func(spec, epilogue, config.tiling)` in place."""
    tile, filters = _tile_output(sch, config)
    reduction = _micro_kernel(sch, sch.get_sblock("direct_Y"), filters, config)
    if config.c_chunk:
        _micro_kernel(sch, sch.get_sblock("direct_S"), reduction, config)
    _stage_input(sch, tile, config)


@stage
def _tile_output(sch: Schedule, config: DirectCpuConfig) -> tuple[Loop, Loop]:
    """Order the output's loops; return (the parallel loop, that over blocks of filters).

    loops: n kb hb wb hi wi ki of O -> parallel (n [kb] hb wb), [kb], the tile; leaves those two
    """
    block = sch.get_sblock("direct_O")
    n, kb, hb, wb, hi, wi, ki = sch.get_loops(block)
    if sch.get(block).annotations["layout"] != "NHWC":
        sch.reorder(ki, hi, wi)  # stores run along w
    if not config.k_outer:
        sch.reorder(n, hb, wb, kb)
    if config.depthwise:
        sch.vectorize(wi)
        parallel, inner = sch.fuse(n, kb), wb
    else:
        parallel = sch.fuse(n, kb, hb, wb) if config.k_outer else sch.fuse(n, hb, wb)
        inner = parallel if config.k_outer else kb
    sch.parallel(parallel)
    return parallel, inner


@stage
def _stage_input(sch: Schedule, tile: Loop, config: DirectCpuConfig) -> None:
    """direct_P per tile (packed, in L1 or L2), or as one parallel pass when filters are outer.

    loops: the parallel loop gets a tile's input, or n and c of the pass are parallel; leaves none
    """
    pad = sch.get_sblock("direct_P")
    if config.depthwise:
        sch.compute_at(pad, tile)
        _, lanes = sch.split(sch.get_loops(pad)[-1], [None, config.lanes])
        sch.vectorize(lanes)
    elif not config.k_outer:
        sch.compute_at(pad, tile)
    elif _is_copy(sch, pad):
        sch.compute_inline(pad)
    else:
        sch.parallel(sch.fuse(*sch.get_loops(pad)[:2]))


@stage
def _micro_kernel(sch: Schedule, sums: Block, anchor: Loop, config: DirectCpuConfig) -> Loop:
    """Registers inside `anchor`: reduction outside, pixels unrolled, filters (or pixels) vectors.

    loops: anchor gets the reduction, then hi wi ki in registers; leaves the innermost reduction
    """
    _, _, _, _, hi, wi, ki, *reduction = move(sch, sums, anchor)
    sch.set_scope(sums, 0, "local")
    sch.reorder(*reduction, hi, wi, ki)
    _registers(sch, [hi, wi, ki], config)
    init = sch.decompose_reduction(sums, reduction[0])
    _registers(sch, sch.get_loops(init)[-3:], config)
    return reduction[-1]


def _registers(sch: Schedule, loops: list[Loop], config: DirectCpuConfig) -> None:
    lanes_along = loops[1] if config.depthwise else loops[2]
    outer, lanes = sch.split(lanes_along, [None, config.lanes])
    for loop in loops:
        if loop is not lanes_along:
            sch.unroll(loop)
    sch.unroll(outer)
    sch.vectorize(lanes)


def _is_copy(sch: Schedule, block: Block) -> bool:
    """True when the block moves elements unchanged: no padding, no conversion."""
    return isinstance(sch.get(block).body.value, ir.TensorLoad)


KERNEL = Kernel(
    name="direct-cpu",
    algorithm="direct",
    target="llvm",
    config=DirectCpuConfig,
    own_supports=supports,
    own_illegal=illegal,
    trial=tried,
    configs=configs,
    prim_func=lambda spec, epilogue, config: direct.prim_func(spec, epilogue, config.tiling),
    schedule=schedule,
    pack_weights=lambda w, spec, config: direct.pack_weights(w, spec, config.tiling),
    weight_func=lambda spec, config: direct.weight_func(spec, config.tiling),
    workspace=workspace,
)
