"""Direct convolution of depthwise and thinly grouped layers on CUDA: bound by memory.

A thread computes th x tw pixels of tk filters of one group. For each channel of the group it loads
what lies under its pixels once, all loads in flight together, and the rest is straight-line
arithmetic in registers: no barrier, and no shared memory unless `channels` asks for it.

    direct_P   the input under a thread's pixels, zero outside the map   registers
    direct_Y   sums                                                      registers
    direct_O   bias, residual, ReLU, store

Lanes follow what is contiguous in memory: columns (NCHW), filters (NHWC) or images (CHWN), so that
a load of a warp is a line or two in every layout and every map, however narrow: lanes continue
with the next rows and maps. Column neighbours in other lanes load the same elements again, from L1.
With `channels` a block copies whole maps, which are contiguous, to shared memory first.
"""

from __future__ import annotations

from typing import Any

from tvm_winograd.gpu import Gpu
from tvm_winograd.shapes import ConvSpec, Epilogue
from tvm_winograd.te import direct

from ..base import blocks
from ..base.blocks import Block, Loop, Schedule
from ..base.kernel import Kernel
from ..base.stages import stage
from .config import Depthwise
from .cost import seconds
from .legal import illegal, needs, supports
from .search import configs, default, portable

__all__ = ["KERNEL", "Depthwise", "configs", "default", "illegal", "portable"]


def prim_func(spec: ConvSpec, epilogue: Epilogue, config: Depthwise) -> Any:
    """main(X, W[, B][, R], O), unscheduled; W (Kb, r, s, c/groups, tk), accumulation dtype."""
    return direct.prim_func(spec, epilogue, config.tiling)


def schedule(sch: Schedule, config: Depthwise, gpu: Gpu) -> None:
    """Schedule `prim_func(spec, epilogue, config)` in place."""
    out, y, x = (sch.get_sblock(f"direct_{name}") for name in "OYP")
    layout = str(sch.get(out).annotations["layout"])
    block, warp, lane, channel, tap = _main_loop(sch, config, y, layout)
    sch.set_scope(y, 0, "local")
    _store(sch, out, lane, layout)
    if config.tk in (2, 4):
        _load_weights(sch, y, channel if config.patch else tap)
    if config.patch:
        _load_patch(sch, x, channel)
    else:
        sch.compute_inline(x)
    if config.channels:
        _stage_maps(sch, x, block, warp)
    blocks.initialise(sch, y, channel)


@stage
def _main_loop(sch: Schedule, config: Depthwise, y: Block, layout: str) -> tuple[Loop, ...]:
    """Threads to what is contiguous in memory; returns the loops (block, warp, lane, channel, s).

    Everything else follows direct_Y: computed at direct_O, whose loops are fused and split, its
    loops would no longer be affine for TVM, and its sums could not be initialised.

    loops: n k h w tile r s c of Y -> blockIdx.x, warp, lane, unrolled tile; leaves (.., lane, c, s)
    """
    n, k, h, w, *tile, r, s, channel = sch.get_loops(y)
    order = {"NCHW": [n, k, h, w], "NHWC": [n, h, w, k], "CHWN": [k, h, w, n]}[layout]
    inner = [channel, r, s, *tile]
    if config.channels:
        k_block, k = sch.split(k, [None, config.channels])
        sch.reorder(n, k_block, k, h, w, *inner)
        block = sch.fuse(n, k_block)
        warp, lane = sch.split(sch.fuse(k, h, w), [None, blocks.WARP])
    else:
        sch.reorder(*order, *inner)
        warps = config.threads // blocks.WARP
        block, warp, lane = sch.split(sch.fuse(*order), [None, warps, blocks.WARP])
    sch.bind(block, "blockIdx.x")
    blocks.bind_warps(sch, warp, lane)
    blocks.unroll(sch, *tile)
    if config.patch:
        blocks.unroll(sch, r, s)
    return block, warp, lane, channel, s


@stage
def _store(sch: Schedule, out: Block, lane: Loop, layout: str) -> None:
    """A thread's outputs, as vectors where all of them are aligned.

    loops: lane gets th tw tk of O, unrolled, the last a vector or unrolled; leaves none
    """
    sch.reverse_compute_at(out, lane, preserve_unit_loops=True)
    row, column, filters = blocks.loops_inside(sch, out, lane)[-3:]
    order = [filters, row, column] if layout == "NCHW" else [row, column, filters]
    sch.reorder(*order)
    shape = [int(v) for v in sch.get(out).writes[0].source.ty.shape]
    lanes = blocks.extent(sch, order[-1])
    whole = layout != "CHWN" and shape[-1] % lanes == 0 and lanes in (2, 4)  # none of 3 halves
    blocks.unroll(sch, *order[:-1])
    (sch.vectorize if whole else sch.unroll)(order[-1])


@stage
def _load_weights(sch: Schedule, y: Block, at: Loop) -> None:
    """A tap's weights of a thread's filters as one vector.

    loops: channel, or the tap s, gets the loads; leaves none
    """
    weights = sch.cache_read(y, 1, "local")
    *outer, vector = blocks.move(sch, weights, at)
    blocks.unroll(sch, *outer)
    sch.vectorize(vector)


@stage
def _load_patch(sch: Schedule, x: Block, channel: Loop) -> None:
    """The input under a thread's pixels to registers.

    loops: channel gets the loads, unrolled; leaves none
    """
    blocks.unroll(sch, *blocks.move(sch, x, channel))
    sch.set_scope(x, 0, "local")


@stage
def _stage_maps(sch: Schedule, x: Block, block: Loop, warp: Loop) -> None:
    """A block's maps, contiguous in memory, to shared memory as they are; x reads them there.

    loops: block gets the copies, dealt to threads; leaves none
    """
    maps = sch.cache_read(x, 0, "shared.dyn")
    blocks.deal(sch, blocks.move(sch, maps, block), blocks.extent(sch, warp))


KERNEL = Kernel(
    name="depthwise-cuda",
    algorithm="direct",
    target="cuda",
    config=Depthwise,
    own_supports=supports,
    own_illegal=illegal,
    needs=needs,
    trial=lambda spec, gpu: [portable(spec)],
    configs=configs,
    prim_func=prim_func,
    schedule=schedule,
    seconds=seconds,
    pack_weights=lambda w, spec, config: direct.pack_weights(w, spec, config.tiling),
    weight_func=lambda spec, config: direct.weight_func(spec, config.tiling),
)
