"""Convolution over windows in memory order, as tensor expressions (im2win).

arXiv 2306.14316 (the transform, on CPUs) and 2306.14320 (on GPUs). For every output row the r
input rows it needs are interleaved, column by column:

    I[c, (n, oh), w * R + r] = X[n, c, oh * stride + r * dilation, w]        (zero where padded)

The window of an output pixel is then a run of S * R neighbours (with dilation, S runs of R), and
windows of neighbouring pixels overlap in memory: I holds OH * W * R * C words an image, where
im2col's matrix holds OH * OW * R * S * C. The convolution is a GEMM whose second operand is
addressed, not stored.

    win_I  windows, (C, rows, Q), or (rows, Q, C) for `channels_last`     the one workspace
    win_T  windows of a block of pixels for one step of the reduction     (if staged)
    win_F  windows of a thread's run of pixels, for one filter row or vector of words (if staged)
    win_Y  sums over (c, s, r), tile-shaped; with `parts` one sum a part of C
    win_S  the parts' sum                                                 (if there are parts)
    win_O  scatter, epilogue   the output in the spec's layout

rows count (n, oh), or (oh, n) for CHWN. C, K, rows and columns are padded to whole tiles here, so
only win_I (loads) and win_O (stores) need guards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from tvm import te, tirx

from ..errors import UnsupportedError
from ..shapes import ConvSpec, Epilogue
from . import common
from .common import Expr, ceil_div, mixed_radix, product, unmix
from .store import scatter

Window = Callable[[Expr, Expr, Expr, Expr], Expr]


@dataclass(frozen=True)
class Tiling:
    """Tile-shaped layouts: declared here so that a schedule's regions are tight.

    Y ([parts,] Kb, *k_tile, Hb, Wb, *h_tile, *w_tile)
    U (Kb, steps * c_tile * s_tile * R, *k_tile), a step's products together and in the order
    (c, s, r), for `channels_last` in (s, r, c)
    """

    k_tile: tuple[int, ...] = (1,)  # filters of a block, outermost first
    h_tile: tuple[int, ...] = (1,)  # output rows of a block
    w_tile: tuple[int, ...] = (1,)  # output columns of a block; the last is a thread's run
    c_tile: int = 1  # channels of a step; C is padded to a multiple
    s_tile: int = 0  # filter columns of a step; S is padded to a multiple; 0: all
    parts: int = 1  # of C, each with a sum of its own
    staged: bool = False  # win_T and win_F exist
    # Words of a window that a thread takes at once: 1, from each column of its run, or 4, of each
    # pixel, where windows and steps start at whole vectors.
    window: int = 1
    channels_last: bool = False


@dataclass(frozen=True)
class Sizes:
    """Everything derived from (spec, tiling)."""

    rows: int  # output rows of all images
    kb: int
    hb: int
    wb: int
    bk: int
    bh: int
    bw: int
    bs: int  # filter columns of a step
    sb: int  # steps over the filter's columns
    c_pad: int
    steps: int  # of the reduction, all parts together
    vector: int  # words of a run that are always aligned together: 1, 2 or 4
    segment: int  # words of a row that a block needs in a step, whole vectors
    pitch: int  # words of a row of I

    taps: tuple[int, int]  # of a channel in a step: words apart, words together

    @property
    def workspace(self) -> int:
        """Elements of I."""
        return self.c_pad * self.hb * self.bh * self.pitch


def sizes(spec: ConvSpec, tiling: Tiling) -> Sizes:
    bk, bh, bw = product(tiling.k_tile), product(tiling.h_tile), product(tiling.w_tile)
    rows, wb, bs = spec.n * spec.oh, ceil_div(spec.ow, bw), tiling.s_tile or spec.s
    sb, c_unit = ceil_div(spec.s, bs), tiling.c_tile * tiling.parts
    c_pad = ceil_div(spec.c, c_unit) * c_unit
    # words between the starts of a block's and the next one's, a step's and the next one's windows
    block, step = bw * spec.stride * spec.r, bs * spec.dilation * spec.r
    vector = math.gcd(4, *([block] * (wb > 1) + [step] * (sb > 1)))
    words = ((bw - 1) * spec.stride + (bs - 1) * spec.dilation + 1) * spec.r
    segment, last = ceil_div(words, vector) * vector, block * (wb - 1) + step * (sb - 1)
    pitch = ceil_div(last + segment, 4) * 4 if tiling.staged else last + words
    taps = (bs, spec.r) if tiling.window == 1 else (bs * spec.r // tiling.window, tiling.window)
    return Sizes(
        rows, ceil_div(spec.k, bk), ceil_div(rows, bh), wb, bk, bh, bw, bs, sb, c_pad,
        c_pad // tiling.c_tile * sb, vector, segment, pitch, taps,
    )  # fmt: skip


def footprint(spec: ConvSpec) -> int:
    """Elements of the windows in memory order, N * C * OH * W * R, without padding to tiles.

    W counts the columns that some window meets.
    """
    columns = (spec.ow - 1) * spec.stride + (spec.s - 1) * spec.dilation + 1
    return spec.n * spec.c * spec.oh * columns * spec.r


def im2col_footprint(spec: ConvSpec) -> int:
    """Elements of im2col's matrix, N * C * OH * OW * R * S."""
    return spec.n * spec.c * spec.oh * spec.ow * spec.r * spec.s


def applies(spec: ConvSpec) -> str | None:
    """None if this file computes the convolution, else the reason why not."""
    if spec.groups != 1:
        return f"im2win needs groups 1, got {spec.groups}"
    if spec.dtype != "float32":
        return f"im2win computes float32, got {spec.dtype}"
    if max(product(spec.input_shape), product(spec.output_shape)) >= 2**31:
        return "a tensor has 2^31 elements or more; indices are 32-bit"
    return None


def weight_shape(spec: ConvSpec, tiling: Tiling) -> tuple[int, ...]:
    """Shape of the packed weights."""
    z = sizes(spec, tiling)
    return (z.kb, z.steps * tiling.c_tile * z.bs * spec.r, *tiling.k_tile)


def pack_weights(w: np.ndarray, spec: ConvSpec, tiling: Tiling) -> np.ndarray:
    """(k, c, r, s) -> the packed weights, zeros behind the last filter, channel and column."""
    z = sizes(spec, tiling)
    pads = (z.kb * z.bk - spec.k, z.c_pad - spec.c, 0, z.sb * z.bs - spec.s)
    padded = np.pad(w, [(0, pad) for pad in pads])
    shape = (z.kb, z.bk, z.c_pad // tiling.c_tile, tiling.c_tile, spec.r, z.sb, z.bs)
    inner = (6, 4, 3) if tiling.channels_last else (3, 6, 4)
    packed = padded.reshape(shape).transpose(0, 2, 5, *inner, 1)
    return np.ascontiguousarray(packed.reshape(weight_shape(spec, tiling)))


def weight_func(spec: ConvSpec, tiling: Tiling) -> Expr:
    """PrimFunc main(W, packed), unscheduled: `pack_weights` on the device, block win_U."""
    z = sizes(spec, tiling)
    w = te.placeholder(spec.weight_shape, spec.dtype, name="W")

    def compute(kb: Expr, t: Expr, *ki: Expr) -> Expr:
        if tiling.channels_last:
            step, si, r, ci = unmix((z.steps, z.bs, spec.r, tiling.c_tile), t)
        else:
            step, ci, si, r = unmix((z.steps, tiling.c_tile, z.bs, spec.r), t)
        k, c = kb * z.bk + mixed_radix(tiling.k_tile, ki), step // z.sb * tiling.c_tile + ci
        s = step % z.sb * z.bs + si
        inside = tirx.all(k < spec.k, c < spec.c, s < spec.s)
        return tirx.if_then_else(inside, w[k, c, r, s], tirx.const(0.0, spec.dtype))

    packed = te.compute(weight_shape(spec, tiling), compute, name="win_U")
    return te.create_prim_func([w, packed])


def transform(data: te.Tensor, spec: ConvSpec, tiling: Tiling) -> te.Tensor:
    """win_I: (c_pad, rows, pitch), or (rows, pitch, c_pad) for `channels_last`."""
    z, (top, left, _, _) = sizes(spec, tiling), spec.padding
    planes = (z.c_pad, z.hb * z.bh, z.pitch)

    def compute(*index: Expr) -> Expr:
        row, q, c = index if tiling.channels_last else (*index[1:], index[0])
        n, oh = _row_position(spec, row)
        h, w = oh * spec.stride + q % spec.r * spec.dilation, q // spec.r
        guards = [c < spec.c] * (z.c_pad != spec.c) + [row < z.rows] * (z.hb * z.bh != z.rows)
        return common.padded(data, spec, n, c, h - top, w - left, *guards)

    shape = (*planes[1:], z.c_pad) if tiling.channels_last else planes
    return te.compute(shape, compute, name="win_I")


def prim_func(spec: ConvSpec, epilogue: Epilogue, tiling: Tiling) -> Expr:
    """PrimFunc main(X, U[, B][, R], O), unscheduled; win_O counts like win_Y.

    Raises:
        UnsupportedError: `applies` gives a reason.
    """
    if reason := applies(spec):
        raise UnsupportedError(reason)
    z = sizes(spec, tiling)
    data, extra = common.placeholders(spec, epilogue)
    u = te.placeholder(weight_shape(spec, tiling), spec.acc, name="U")
    windows = transform(data, spec, tiling)
    read = _staged(windows, spec, tiling) if tiling.staged else _direct(windows, spec, tiling)
    y = _sums(u, read, spec, tiling)
    func = te.create_prim_func([data, u, *extra, _sum_parts(y) if tiling.parts > 1 else y])
    nk, nh = 1 + len(tiling.k_tile), 3 + len(tiling.k_tile) + len(tiling.h_tile)

    def place(index: Sequence[Expr]) -> tuple[tuple[Expr, Expr, Expr, Expr], list[Expr]]:
        k = index[0] * z.bk + mixed_radix(tiling.k_tile, index[1:nk])
        row = index[nk] * z.bh + mixed_radix(tiling.h_tile, index[nk + 2 : nh])
        w = index[nk + 1] * z.bw + mixed_radix(tiling.w_tile, index[nh:])
        n, oh = _row_position(spec, row)
        guards = [k < spec.k] * (z.kb * z.bk != spec.k) + [w < spec.ow] * (z.wb * z.bw != spec.ow)
        return (n, k, oh, w), guards + [row < z.rows] * (z.hb * z.bh != z.rows)

    return scatter(func, spec, epilogue, place, "win_O")


def _row_position(spec: ConvSpec, row: Expr) -> tuple[Expr, Expr]:
    """(n, oh) of a row: neighbours in `row` are neighbours in the layout's memory."""
    if spec.layout == "CHWN":
        return row % spec.n, row // spec.n
    return row // spec.oh, row % spec.oh


def _channel(z: Sizes, tiling: Tiling, step: Expr, ci: Expr) -> Expr:
    return step // z.sb * tiling.c_tile + ci


def _direct(windows: te.Tensor, spec: ConvSpec, tiling: Tiling) -> Callable[..., Expr]:
    """read(step, ci, si, r, hb, wb, h, w): the element of I."""
    z = sizes(spec, tiling)

    def read(
        step: Expr, ci: Expr, si: Expr, r: Expr, hb: Expr, wb: Expr,
        h: Sequence[Expr], w: Sequence[Expr],
    ) -> Expr:  # fmt: skip
        c, row = _channel(z, tiling, step, ci), hb * z.bh + mixed_radix(tiling.h_tile, h)
        column = (wb * z.bw + mixed_radix(tiling.w_tile, w)) * spec.stride
        q = (column + (step % z.sb * z.bs + si) * spec.dilation) * spec.r + r
        return windows[row, q, c] if tiling.channels_last else windows[c, row, q]

    return read


def _staged(windows: te.Tensor, spec: ConvSpec, tiling: Tiling) -> Callable[..., Expr]:
    """The same through win_T, whole vectors of a block's rows, and win_F, a thread's columns."""
    z, run = sizes(spec, tiling), tiling.w_tile[-1]

    def tile(step: Expr, hb: Expr, wb: Expr, line: Expr, q: Expr, lane: Expr) -> Expr:
        c, row = _channel(z, tiling, step, line // z.bh), hb * z.bh + line % z.bh
        start = (wb * z.bw * spec.stride + step % z.sb * z.bs * spec.dilation) * spec.r
        return windows[c, row, start + q * z.vector + lane]

    lines, vectors = tiling.c_tile * z.bh, z.segment // z.vector
    shared = te.compute((z.steps, z.hb, z.wb, lines, vectors, z.vector), tile, name="win_T")
    outer = (z.steps, tiling.c_tile, z.hb, z.wb, *tiling.h_tile)

    if tiling.window > 1:
        return _vectors(shared, spec, tiling)

    def fragment(*index: Expr) -> Expr:
        *block, x, r = index
        step, ci, hb, wb, *h = block[: len(outer)]
        w = mixed_radix(tiling.w_tile[:-1], block[len(outer) :])
        q = (w * run * spec.stride + x) * spec.r + r
        line = ci * z.bh + mixed_radix(tiling.h_tile, h)
        return shared[step, hb, wb, line, q // z.vector, q % z.vector]

    columns = (run - 1) * spec.stride + (z.bs - 1) * spec.dilation + 1
    local = te.compute((*outer, *tiling.w_tile[:-1], columns, spec.r), fragment, name="win_F")

    def read(
        step: Expr, ci: Expr, si: Expr, r: Expr, hb: Expr, wb: Expr,
        h: Sequence[Expr], w: Sequence[Expr],
    ) -> Expr:  # fmt: skip
        x = w[-1] * spec.stride + si * spec.dilation
        return local[(step, ci, hb, wb, *h, *w[:-1], x, r)]

    return read


def _vectors(shared: te.Tensor, spec: ConvSpec, tiling: Tiling) -> Callable[..., Expr]:
    """The same from win_T, through a win_F of whole vectors of every pixel's window."""
    z = sizes(spec, tiling)
    outer = (z.steps, tiling.c_tile, z.hb, z.wb, *tiling.h_tile)

    def fragment(*index: Expr) -> Expr:
        *block, q, lane = index
        step, ci, hb, wb, *h = block[: len(outer)]
        w = mixed_radix(tiling.w_tile, block[len(outer) :])
        line = ci * z.bh + mixed_radix(tiling.h_tile, h)
        return shared[step, hb, wb, line, w * (spec.stride * spec.r // tiling.window) + q, lane]

    local = te.compute((*outer, *tiling.w_tile, *z.taps), fragment, name="win_F")

    def read(
        step: Expr, ci: Expr, q: Expr, lane: Expr, hb: Expr, wb: Expr,
        h: Sequence[Expr], w: Sequence[Expr],
    ) -> Expr:  # fmt: skip
        return local[(step, ci, hb, wb, *h, *w, q, lane)]

    return read


def _sums(u: te.Tensor, read: Callable[..., Expr], spec: ConvSpec, tiling: Tiling) -> te.Tensor:
    """win_Y; the reduction is over (step, c, s, r), the last three inside a step.

    (s, r) are (vector, word) if a thread takes vectors: the same words in the same order.
    """
    z, nk, nh = sizes(spec, tiling), 1 + len(tiling.k_tile), len(tiling.h_tile)
    steps = z.steps // tiling.parts
    extents = {"step": steps, "rc": tiling.c_tile, "rs": z.taps[0], "rr": z.taps[1]}
    axes = [te.reduce_axis((0, extent), name) for name, extent in extents.items()]

    def compute(*index: Expr) -> Expr:
        part, index = (index[0], index[1:]) if tiling.parts > 1 else (0, index)
        (hb, wb), h, w = index[nk : nk + 2], index[nk + 2 : nk + 2 + nh], index[nk + 2 + nh :]
        local, ci, si, r = axes
        step = part * steps + local
        if tiling.channels_last:
            t = ((step * z.taps[0] + si) * z.taps[1] + r) * tiling.c_tile + ci
        else:
            t = ((step * tiling.c_tile + ci) * z.taps[0] + si) * z.taps[1] + r
        return te.sum(
            u[(index[0], t, *index[1:nk])] * read(step, ci, si, r, hb, wb, h, w), axis=axes
        )

    shape = (z.kb, *tiling.k_tile, z.hb, z.wb, *tiling.h_tile, *tiling.w_tile)
    return te.compute((tiling.parts,) * (tiling.parts > 1) + shape, compute, name="win_Y")


def _sum_parts(y: te.Tensor) -> te.Tensor:
    part = te.reduce_axis((0, int(y.shape[0])), "part")
    return te.compute(y.shape[1:], lambda *i: te.sum(y[(part, *i)], axis=part), name="win_S")
