"""Convolution over windows in memory order on CUDA (im2win), fp32 FMA, in two or three kernels.

    transform    X -> I, a workspace, windows in memory order    float4 stores
    convolution  U, I -> O   a block of filters x rows x columns, operands in shared memory,
                             8x8 or so sums a thread; bias, residual and ReLU
    sum          with `parts` of C only: their sums -> O, first to last, then the epilogue

    U       global  (Kb, t, tk/4, bk/tk, 4)        shared  (bc * bs * R, tk/4, bk/tk, 4) a step
    I       global  (C, rows, W * R)               shared  (bc * bh, segment) a step

A block reads from each of its rows a segment of neighbours. A thread takes the columns of its run
of tw pixels once for each filter row, (tw - 1) * stride + S words for tw * S products and tk
filters: no other order of the operands has this reuse in registers. Where a stride is as wide as
the filter columns of a step (11x11, stride 4) no words are shared: there it takes vectors of each
pixel's window (`flat`). The workspace comes from TVM's device pool on the host, once a call.
"""

from __future__ import annotations

from typing import Any

from tvm_winograd.gpu import Gpu
from tvm_winograd.shapes import ConvSpec, Epilogue
from tvm_winograd.te import im2win

from ..base import blocks
from ..base.blocks import Block, Loop, Schedule
from ..base.kernel import Kernel
from ..base.stages import stage
from . import operands, output, transform
from .config import Im2win
from .cost import least, seconds, workspace
from .legal import illegal, needs, supports
from .search import configs, default, portable

__all__ = ["KERNEL", "Im2win", "configs", "default", "illegal", "portable", "schedule"]

_NOT_MEASURED = "im2win's estimate is fitted to NCHW; ask for im2win"


def prim_func(spec: ConvSpec, epilogue: Epilogue, config: Im2win) -> Any:
    """main(X, U[, B][, R], O), unscheduled."""
    return im2win.prim_func(spec, epilogue, config.tiling)


def schedule(sch: Schedule, config: Im2win, gpu: Gpu) -> None:
    """Schedule `prim_func(spec, epilogue, config)` in place."""
    layout = str(sch.get(sch.get_sblock("win_O")).annotations["layout"])
    y = sch.get_sblock("win_Y")
    if config.parts > 1:
        output.sum_of_parts(sch, config)
    lane = output.bind(sch, config, y, layout)
    step, outer, tap = _main_loop(sch, config, y, lane)
    fragment = operands.to_registers(sch, config, y, outer, tap)
    if config.shared:
        operands.to_shared(sch, config, fragment, step)
    else:
        sch.compute_inline(sch.get_sblock("win_T"))
    blocks.initialise(sch, y, step)
    transform.windows(sch, config.threads, gpu, layout)


@stage
def _main_loop(sch: Schedule, config: Im2win, y: Block, lane: Loop) -> tuple[Loop, ...]:
    """Sums in registers, an outer product each.

    Returns the loops (step, outer, tap): filter rows and their columns, or vectors and their words.

    loops: lane gets step, channel, r and s, k1 h1 k2 w1 unrolled; leaves (step, outer, tap)
    """
    *rest, k1, k0, k2, hb, wb, h1, h0, w0, w1, step, channel, s, r = blocks.move(sch, y, lane)
    outer, tap = (s, r) if config.flat else (r, s)
    tile = [*rest, k0, hb, wb, h0, w0, k1, h1, k2, w1]
    sch.reorder(step, channel, outer, tap, *tile)
    blocks.unroll(sch, tap, *tile)
    straight = config.accumulators * blocks.extent(sch, tap)
    for loop in (outer, channel):
        straight *= blocks.extent(sch, loop)
        if straight <= config.unroll:
            sch.unroll(loop)
    return step, outer, tap


KERNEL = Kernel(
    name="im2win-cuda",
    algorithm="im2win",
    target="cuda",
    config=Im2win,
    own_supports=supports,
    own_illegal=illegal,
    needs=needs,
    trial=lambda spec, gpu: [portable(spec)],
    configs=configs,
    prim_func=prim_func,
    schedule=schedule,
    pack_weights=lambda w, spec, config: im2win.pack_weights(w, spec, config.tiling),
    weight_func=lambda spec, config: im2win.weight_func(spec, config.tiling),
    pass_config=blocks.ASYNC_COPY,
    not_worth=lambda spec, hardware: None if spec.layout == "NCHW" else _NOT_MEASURED,
    seconds=seconds,
    least=least,
    workspace=workspace,
)
