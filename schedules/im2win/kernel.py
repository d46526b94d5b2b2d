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

from tvm_winograd.gpu import Gpu, Hardware
from tvm_winograd.shapes import ConvSpec, Epilogue
from tvm_winograd.te import im2win
from tvm_winograd.te.common import ceil_div

from ..base import blocks
from ..base.blocks import Block, Loop, Schedule
from ..base.kernel import Kernel
from . import transform as im2win_transform
from .config import FILTER_STRIDE, ROW_STRIDE, Im2win, illegal
from .cost import seconds
from .search import configs, default, portable

__all__ = ["KERNEL", "Im2win", "configs", "default", "illegal", "portable", "schedule", "supports"]

_NOT_MEASURED = "im2win's estimate is fitted to NCHW; ask for im2win"


def supports(spec: ConvSpec, epilogue: Epilogue, hw: Hardware) -> str | None:
    """None, or why this kernel cannot compute `spec` on `hw`."""
    if hw.kind != "cuda":
        return f"a CUDA kernel, got a {hw.kind} target"
    return im2win.applies(spec) or illegal(portable(spec), spec, hw)


def prim_func(spec: ConvSpec, epilogue: Epilogue, config: Im2win) -> Any:
    """main(X, U[, B][, R], O), unscheduled; its attribute "shared_bytes" is what a block needs."""
    func = im2win.prim_func(spec, epilogue, config.tiling)
    return func.with_attr("shared_bytes", config.shared_for(spec))


def schedule(sch: Schedule, config: Im2win, gpu: Gpu) -> None:
    """Schedule `prim_func(spec, epilogue, config)` in place."""
    layout = str(sch.get(sch.get_sblock("win_O")).annotations["layout"])
    y = sch.get_sblock("win_Y")
    lane = _bind_tile(sch, config, y, layout)
    step, outer, tap = _accumulate(sch, config, y, lane)
    fragment = _fragments(sch, config, y, outer, tap)
    if config.shared:
        _stage_operands(sch, config, fragment, step)
    else:
        sch.compute_inline(sch.get_sblock("win_T"))
    sch.decompose_reduction(y, step)
    im2win_transform.schedule(sch, config.threads, gpu, layout)


def _bind_tile(sch: Schedule, config: Im2win, y: Block, layout: str) -> Loop:
    """Tiles to blocks, pixels and filters to threads; returns the loop over lanes."""
    out = sch.get_sblock("win_O")
    if config.parts > 1:
        _sum_of_parts(sch, config)
        store, layout = sch.cache_write(y, 0, "local"), ""
        _, loops = _bind_grid(sch, store)
    else:
        block, loops = _bind_grid(sch, out)
        if config.store == "shared":
            store = sch.cache_read(out, 0, "shared.dyn")
            _deal_output(sch, config, layout, loops)
            kb, *filters, hb, wb, h1, h0, w0, w1 = blocks.move(sch, store, block)
            sch.reorder(kb, hb, wb, *filters, h1, h0, w0, w1)
            loops, layout = [*filters, h1, h0, w0, w1], ""
            sch.storage_align(store, 0, 3, *FILTER_STRIDE)
            sch.storage_align(store, 0, 7, *ROW_STRIDE)
        else:
            store = out
        sch.set_scope(y, 0, "local")
    return _bind_threads(sch, config, store, loops, layout)


def _bind_grid(sch: Schedule, store: Block) -> tuple[Loop, list[Loop]]:
    """Returns the loop over blocks, and those inside: k1, k0, k2, h1, h0, w0, w1.

    Blocks of the same pixels and other filters are neighbours: they find the windows in L2.
    """
    *part, kb, k1, k0, k2, hb, wb, h1, h0, w0, w1 = sch.get_loops(store)
    sch.reorder(*part, hb, wb, kb, k1, k0, k2, h1, h0, w0, w1)
    for loop in part:
        sch.bind(loop, "blockIdx.y")
    block = sch.fuse(hb, wb, kb)
    sch.bind(block, "blockIdx.x")
    return block, [k1, k0, k2, h1, h0, w0, w1]


def _deal_output(sch: Schedule, config: Im2win, layout: str, loops: list[Loop]) -> None:
    """Neighbouring threads store neighbours in memory."""
    filters, rows, columns = loops[:3], loops[3:5], loops[5:]
    order = {
        "NCHW": [*filters, *rows, *columns],
        "CHWN": [*filters, *columns, *rows],
        "NHWC": [*rows, *columns, *filters],
    }[layout]
    sch.reorder(*order)
    blocks.deal(sch, order, config.warps)


def _bind_threads(
    sch: Schedule, config: Im2win, store: Block, loops: list[Loop], layout: str
) -> Loop:
    """Returns the loop over lanes.

    Args:
        layout: of the output if `store` writes it, else "": what it writes is tile-shaped.
    """
    k1, k0, k2, h1, h0, w0, w1 = loops
    split = {}
    for name, loop in (("k", k0), ("h", h0), ("w", w0)):
        split[name] = sch.split(loop, [None, 2 ** config.lanes.count(name)])
    bits = blocks.interleave(sch, config.lanes, **{name: lane for name, (_, lane) in split.items()})
    warps = [warp for warp, _ in split.values()]
    sch.reorder(*warps, *bits, k1, h1, k2, w1)
    lane = sch.fuse(*bits)
    blocks.bind_warps(sch, sch.fuse(*warps), lane)
    shape = [int(v) for v in sch.get(store).writes[0].source.ty.shape]
    inner, whole = w1, config.tw % 4 == 0 and config.store == "direct"
    if layout == "NHWC":
        sch.reorder(w1, k2)
        inner, whole = k2, shape[-1] % config.bk == 0 and config.k_vector == 4
    elif layout:
        whole &= layout == "NCHW" and shape[-1] % config.bw == 0
    blocks.unroll(sch, *(loop for loop in (k1, h1, k2, w1) if loop is not inner))
    if whole:
        outer, inner = sch.split(inner, [None, 4])
        sch.unroll(outer)
        sch.vectorize(inner)
    else:
        sch.unroll(inner)
    return lane


def _accumulate(sch: Schedule, config: Im2win, y: Block, lane: Loop) -> tuple[Loop, ...]:
    """Sums in registers, an outer product each.

    Returns the loops (step, outer, tap): filter rows and their columns, or vectors and their words.
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


def _fragments(sch: Schedule, config: Im2win, y: Block, outer: Loop, tap: Loop) -> Block:
    """A thread's windows of a filter row or vector, and its weights of one tap, to registers."""
    weights, windows = sch.cache_read(y, 0, "local"), sch.get_sblock("win_F")
    *loops, vector = blocks.move(sch, weights, tap)
    blocks.unroll(sch, *loops)
    sch.vectorize(vector)
    *loops, last = blocks.move(sch, windows, outer)
    blocks.unroll(sch, *loops)
    (sch.vectorize if config.flat else sch.unroll)(last)
    sch.set_scope(windows, 0, "local")
    return weights


def _stage_operands(sch: Schedule, config: Im2win, fragment: Block, step: Loop) -> None:
    """Windows and weights of a step to shared memory."""
    windows, weights = sch.get_sblock("win_T"), sch.cache_read(fragment, 0, "shared.dyn")
    vector = blocks.extent(sch, sch.get_loops(windows)[-1])
    stage, order = [0, 0, config.buffers - 1], [0, 1, 2]
    # block, its loops over rows end, those over neighbours start, words of an access, rows together
    of_windows = 4, 4, vector, config.bw if config.flat else config.bh
    of_weights = 2, 3, config.k_vector, 1
    copies = [(windows, *of_windows), (weights, *of_weights)]
    if config.copies == "registers":
        store, load = sch.cache_write(windows, 0, "local"), sch.cache_read(weights, 0, "local")
        copies = [(store, *of_windows), *copies, (load, *of_weights)]
        stage, order = [0, 1, 0, 1, 1], [2, 0, 3, 1, 4]
        windows = store
    sch.set_scope(windows, 0, "shared.dyn")
    for copy, end, start, *sizes in copies:
        loops = blocks.move(sch, copy, step)
        _deal_rows(sch, config, loops[:end], loops[end:start], loops[start:], *sizes)
    sch.storage_align(windows, 0, 3, 2 * vector, vector)
    if config.copies != "plain":
        blocks.pipeline(sch, step, stage, order, copies_async=config.copies == "async")


def _deal_rows(
    sch: Schedule,
    config: Im2win,
    rows: list[Loop],
    outer: list[Loop],
    words: list[Loop],
    vector: int,
    group: int,
) -> None:
    """Rows of words to threads, whole vectors each; neighbours to neighbours.

    In two dimensions: a thread's turns then differ by constants, while a flat count would need a
    division for each and an address to keep, and TVM would not see which words are a thread's.

    Args:
        outer: loops that every thread runs in full.
        group: rows that are neighbours in memory, the next ones elsewhere.
    """
    row, word = sch.fuse(*rows), sch.fuse(*words)
    count, vectors = blocks.extent(sch, row), ceil_div(blocks.extent(sch, word), vector)

    def turns(width: tuple[int, int]) -> int:
        along = width[0] * width[1]
        each = config.conv_threads // along
        crossing = each % group > 0 and group % each > 0  # a division for each turn after all
        return ceil_div(vectors, along) * ceil_div(count, each) * (1 + crossing)

    w_warps, w_lanes = min(_widths(config.warps), key=turns)
    row_turn, row_warp, row_lane = sch.split(
        row, [None, config.warps // w_warps, blocks.WARP // w_lanes]
    )
    turn, warp, lane, inner = sch.split(word, [None, w_warps, w_lanes, vector])
    sch.reorder(row_warp, warp, row_lane, lane, *outer, row_turn, turn, inner)
    blocks.bind_warps(sch, sch.fuse(row_warp, warp), sch.fuse(row_lane, lane))
    blocks.unroll(sch, *outer, row_turn, turn)
    sch.vectorize(inner)


def _widths(warps: int) -> list[tuple[int, int]]:
    """(warps, lanes) that may lie along a row, widest first."""
    whole = [(w, blocks.WARP) for w in range(warps, 0, -1) if warps % w == 0]
    return whole + [(1, lanes) for lanes in (16, 8, 4, 2, 1)]


def _sum_of_parts(sch: Schedule, config: Im2win) -> None:
    """S and O, a thread an element."""
    store, sums = sch.get_sblock("win_O"), sch.get_sblock("win_S")
    block, thread = sch.split(sch.fuse(*sch.get_loops(store)), [None, config.threads])
    sch.bind(block, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    *_, part = blocks.move(sch, sums, thread)
    sch.set_scope(sums, 0, "local")
    sch.unroll(part)


KERNEL = Kernel(
    name="im2win-cuda",
    algorithm="im2win",
    target="cuda",
    config=Im2win,
    supports=supports,
    illegal=illegal,
    configs=configs,
    prim_func=prim_func,
    schedule=schedule,
    pack_weights=lambda w, spec, config: im2win.pack_weights(w, spec, config.tiling),
    weight_func=lambda spec, config: im2win.weight_func(spec, config.tiling),
    pass_config=blocks.ASYNC_COPY,
    not_worth=lambda spec, hardware: None if spec.layout == "NCHW" else _NOT_MEASURED,
    seconds=seconds,
    workspace=lambda config, spec: config.workspace_bytes(spec),
)
