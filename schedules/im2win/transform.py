"""The transform of im2win on CUDA: X -> I, windows in memory order."""

from __future__ import annotations

import math

from tvm_winograd.gpu import Gpu

from ..base import blocks
from ..base.blocks import Schedule
from ..base.stages import stage

_TOGETHER = 6  # rows of words that a thread makes, at most
_BUSY = 1024  # threads an SM that it keeps


@stage
def windows(sch: Schedule, threads: int, gpu: Gpu, layout: str) -> None:
    """X -> I, four words of a row a thread; some lanes along what is contiguous in X.

    Where four words lie takes a thread most of its 160 instructions: it serves several channels, or
    rows of an image, of which only the address differs.

    loops: c row word of I -> blockIdx.x, threadIdx.x, turns of 4 words; leaves none
    """
    load = sch.get_sblock("win_I")
    store = sch.cache_write(load, 0, "local")
    c, row, word = sch.get_loops(store)
    word, vector = sch.split(word, [None, 4])
    planes, rows = blocks.extent(sch, c), blocks.extent(sch, row)
    most = min(_TOGETHER, planes * rows * blocks.extent(sch, word) // (gpu.sms * _BUSY))
    loops, inner, width = {"c": c, "row": row}, [], threads
    if along := {"NHWC": "c", "CHWN": "row"}.get(layout):
        lanes = next(n for n in (8, 4, 2, 1) if n <= blocks.extent(sch, loops[along]))
        loops[along], lane = sch.split(loops[along], [None, lanes])
        inner, width = [lane], threads // lanes
    again, count = ("c", planes) if along != "c" and planes > 1 else ("row", 1)
    if again == "row" and along != "row":
        out = sch.get(sch.get_sblock("win_O")).writes[0].source.ty.shape
        count = math.gcd(rows, int(out[layout.index("H")]))
    count = max(n for n in range(1, max(1, most) + 1) if count % n == 0)
    loops[again], turn = sch.split(loops[again], [None, count])
    sch.reorder(*loops.values(), word, *inner, turn, vector)
    block, thread = sch.split(sch.fuse(*loops.values(), word), [None, width])
    sch.bind(block, "blockIdx.x")
    thread = sch.fuse(thread, *inner)
    sch.bind(thread, "threadIdx.x")
    sch.unroll(turn)
    sch.vectorize(vector)
    blocks.unroll(sch, *blocks.move(sch, load, thread))
