"""Who computes and stores which outputs of im2win on CUDA, and the sum of parts.

Loops beside those of base/blocks.py: hb h1 h0 and wb w0 w1 are rows and columns of output pixels as
kb k1 k0 are filters: of blocks, of a thread (h1, w1), of threads (h0, w0).
"""

from __future__ import annotations

from ..base import blocks
from ..base.blocks import Block, Loop, Schedule
from ..base.stages import stage
from .config import FILTER_STRIDE, ROW_STRIDE, Im2win


@stage
def bind(sch: Schedule, config: Im2win, y: Block, layout: str) -> Loop:
    """Tiles to blocks, pixels and filters to threads; returns the loop over lanes.

    loops: [part] kb k1 k0 k2 hb wb h1 h0 w0 w1 of the store -> grid, warp, lane; leaves the lane
    """
    out = sch.get_sblock("win_O")
    if config.parts > 1:
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
    """Bind a tile to a block; return its loop, and those inside: k1, k0, k2, h1, h0, w0, w1.

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


@stage
def sum_of_parts(sch: Schedule, config: Im2win) -> None:
    """S and O, a thread an element.

    loops: all of O -> blockIdx.x, threadIdx.x; leaves none
    """
    store, sums = sch.get_sblock("win_O"), sch.get_sblock("win_S")
    block, thread = sch.split(sch.fuse(*sch.get_loops(store)), [None, config.threads])
    sch.bind(block, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    *_, part = blocks.move(sch, sums, thread)
    sch.set_scope(sums, 0, "local")
    sch.unroll(part)
