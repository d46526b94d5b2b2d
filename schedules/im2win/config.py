"""The knobs of the im2win CUDA kernels, and the sizes that follow from them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from tvm_winograd.shapes import ConvSpec
from tvm_winograd.te import im2win
from tvm_winograd.te.common import ceil_div

from ..base import blocks

Copies = Literal["async", "registers", "plain"]
Store = Literal["direct", "shared"]
# Words from a filter's sums to the next one's in shared memory, and from a row to the next, as
# (multiple of, plus): lanes "hkhkh" then meet every bank once.
FILTER_STRIDE = (8, 2)
ROW_STRIDE = (2, 1)


@dataclass(frozen=True)
class Im2win:
    """Sizes of a block and a thread, and how data moves."""

    # The convolution: a block of bk filters x bh rows x bw columns of output pixels, a thread of
    # tk x th x tw of them; tw neighbours of a row share the columns where their windows overlap.
    bk: int = 64
    bh: int = 8
    bw: int = 8
    tk: int = 8
    th: int = 1
    tw: int = 8
    # What the lane bits count, high to low: (k) filters, (h) rows, (w) runs of columns; the warps
    # of a block share the rest. Lanes along rows meet no bank twice: a row's pitch is chosen.
    lanes: str = "hkhkh"
    bc: int = 2  # channels a step
    bs: int = 0  # filter columns a step; 0: all
    # Words of a window in a step, of all channels together: whole vectors, copied and loaded pixel
    # by pixel, where stride * C * R is a multiple of 4 (bc and bs are 1 and 0). 0: columns of `bc`
    # channels, which neighbours share where their windows overlap.
    flat: int = 0
    shared: bool = True  # False: operands straight from global memory
    # How operands reach shared memory: "async" (cp.async, `buffers` - 1 steps ahead), "registers"
    # (one step ahead in registers, one buffer) or "plain" (when they are needed).
    copies: Copies = "async"
    buffers: int = 3
    unroll: int = 1024  # multiply-adds of a thread in straight line, at most
    # A thread stores what it has summed ("direct"; 16 bytes each where rows allow it), or sums go
    # through "shared" memory, and neighbouring threads store neighbours. Sums of parts are direct.
    store: Store = "direct"
    parts: int = 1  # of C, in blocks of their own; a third kernel adds them
    threads: int = 256  # a block of the transform and of the sum of parts

    @property
    def grid_tile(self) -> tuple[int, int, int]:
        """Threads of a block along filters, rows and columns."""
        return self.bk // self.tk, self.bh // self.th, self.bw // self.tw

    @property
    def conv_threads(self) -> int:
        k, h, w = self.grid_tile
        return k * h * w

    @property
    def warps(self) -> int:
        """Warps a block of the convolution."""
        return self.conv_threads // blocks.WARP

    @property
    def accumulators(self) -> int:
        """fp32 registers of a thread for its sums."""
        return self.tk * self.th * self.tw

    @property
    def lines(self) -> int:
        """Rows of windows, or pixels of them, that a block has in shared memory."""
        return self.bh * (self.bw if self.flat else self.bc)

    @property
    def k_vector(self) -> int:
        """Filters of one access to the weights."""
        return min(self.tk, 4)

    @property
    def tiling(self) -> im2win.Tiling:
        k, h, w = self.grid_tile
        k_tile = (self.tk // self.k_vector, k, self.k_vector)
        return im2win.Tiling(
            k_tile, (self.th, h), (w, self.tw), self.bc, self.bs, self.parts, True, self.flat
        )

    def sizes(self, spec: ConvSpec) -> im2win.Sizes:
        return _sizes(spec, self)

    def fragment_words(self, spec: ConvSpec) -> int:
        """Words of windows that a thread holds: of a filter row, or a vector of each pixel."""
        columns = (
            (self.tw - 1) * spec.strides[1] + ((self.bs or spec.s) - 1) * spec.dilations[1] + 1
        )
        return self.th * (4 * self.tw if self.flat else columns)

    def step_words(self, spec: ConvSpec) -> int:
        """Words of one buffer: weights and windows of a step."""
        z = self.sizes(spec)
        return math.prod(z.taps) * self.bk + self.lines * row_pitch(self, spec)

    def copies_of_step(self, spec: ConvSpec) -> int:
        """Copies of a thread to shared memory, 16 bytes of weights or a vector of windows each."""
        z = self.sizes(spec)
        weights, windows = math.prod(z.taps) * self.bk, self.lines * z.segment
        return ceil_div(weights // self.k_vector + windows // z.vector, self.conv_threads)

    def shared_for(self, spec: ConvSpec) -> int:
        """Bytes of shared memory a block."""
        main = self.buffers * self.step_words(spec) if self.shared else 0
        row = _aligned(self.bw, *ROW_STRIDE)
        sums = self.bk * _aligned(self.bh * row, *FILTER_STRIDE)
        return 4 * max(main, sums if self.store == "shared" and self.parts == 1 else 0)

    def workspace_bytes(self, spec: ConvSpec) -> int:
        """Device memory beside the tensors: the windows, and sums of parts if there are any."""
        z = self.sizes(spec)
        sums = self.parts * z.kb * z.bk * z.hb * z.bh * z.wb * z.bw if self.parts > 1 else 0
        return 4 * (z.workspace + sums)


@lru_cache(maxsize=1024)  # estimates of a config ask a dozen times
def _sizes(spec: ConvSpec, config: Im2win) -> im2win.Sizes:
    return im2win.sizes(spec, config.tiling)


def row_pitch(config: Im2win, spec: ConvSpec) -> int:
    """Words of a line of windows in shared memory: lanes along lines meet no bank twice."""
    z = config.sizes(spec)
    return _aligned(z.segment, 2 * z.vector, z.vector)


def _aligned(words: int, factor: int, offset: int) -> int:
    """The least stride of at least `words` that is `offset` more than a multiple of `factor`."""
    return words + (offset - words) % factor
