"""How a step's windows and weights get to the sums: by shared memory, then to registers."""

from __future__ import annotations

from tvm_winograd.te.common import ceil_div

from ..base import blocks
from ..base.blocks import Block, Loop, Schedule
from ..base.stages import stage
from .config import Im2win


@stage
def to_registers(sch: Schedule, config: Im2win, y: Block, outer: Loop, tap: Loop) -> Block:
    """A thread's windows of a filter row or vector, and its weights of one tap, to registers.

    loops: tap gets the weights, outer the windows, unrolled or vectors; leaves none
    """
    weights, windows = sch.cache_read(y, 0, "local"), sch.get_sblock("win_F")
    *loops, vector = blocks.move(sch, weights, tap)
    blocks.unroll(sch, *loops)
    sch.vectorize(vector)
    *loops, last = blocks.move(sch, windows, outer)
    blocks.unroll(sch, *loops)
    (sch.vectorize if config.flat else sch.unroll)(last)
    sch.set_scope(windows, 0, "local")
    return weights


@stage
def to_shared(sch: Schedule, config: Im2win, fragment: Block, step: Loop) -> None:
    """Windows and weights of a step to shared memory.

    loops: step gets the copies, dealt to threads row by row, pipelined; leaves none
    """
    windows, weights = sch.get_sblock("win_T"), sch.cache_read(fragment, 0, "shared.dyn")
    vector = blocks.extent(sch, sch.get_loops(windows)[-1])
    stages, order = [0, 0, config.buffers - 1], [0, 1, 2]
    # block, its loops over rows end, those over neighbours start, words of an access, rows together
    of_windows = 4, 4, vector, config.bw if config.flat else config.bh
    of_weights = 2, 3, config.k_vector, 1
    copies = [(windows, *of_windows), (weights, *of_weights)]
    if config.copies == "registers":
        store, load = sch.cache_write(windows, 0, "local"), sch.cache_read(weights, 0, "local")
        copies = [(store, *of_windows), *copies, (load, *of_weights)]
        stages, order = [0, 1, 0, 1, 1], [2, 0, 3, 1, 4]
        windows = store
    sch.set_scope(windows, 0, "shared.dyn")
    for copy, end, start, *sizes in copies:
        loops = blocks.move(sch, copy, step)
        _deal_rows(sch, config, loops[:end], loops[end:start], loops[start:], *sizes)
    sch.storage_align(windows, 0, 3, 2 * vector, vector)
    if config.copies != "plain":
        blocks.pipeline(sch, step, stages, order, copies_async=config.copies == "async")


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
