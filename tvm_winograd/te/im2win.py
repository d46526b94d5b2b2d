"""Convolution over windows in memory order, as tensor expressions (im2win).

arXiv 2306.14320 (the transform, on CPUs) and 2306.14316 (on GPUs). For every output row the r
input rows it needs are interleaved, column by column:

    I[c, (n, oh), w * R + r] = X[n, c, oh * stride + r * dilation, w]        (zero where padded)

The window of an output pixel is then a run of S * R neighbours (with dilation, S runs of R), and
windows of neighbouring pixels overlap in memory: I holds OH * W * R * C words an image, where
im2col's matrix holds OH * OW * R * S * C. The convolution is a GEMM whose second operand is
addressed, not stored. With `flat` a column holds all channels, I[(n, oh), (w * C + c) * R + r]: a
pixel's window is one run of S * C * R words, cut into steps anywhere.

    win_I  windows, (C, rows, Q), or (rows, Q, C) for `channels_last`     the one workspace
    win_T  windows of a block of pixels for one step of the reduction     (if staged)
    win_F  windows of a thread's pixels, one filter row or 4 words of them    (if staged)
    win_Y  sums over (c, s, r), tile-shaped; with `parts` one sum a part of C
    win_S  the parts' sum                                                 (if there are parts)
    win_O  scatter, epilogue   the output in the spec's layout

rows count (n, oh), or (oh, n) for CHWN. C, K, rows and columns are padded to whole tiles here, so
only win_I (loads) and win_O (stores) need guards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import te

from ..errors import UnsupportedError
from ..shapes import ConvSpec, Epilogue
from . import common
from .common import Expr, mixed_radix, unmix
from .im2win_layout import (
    Sizes,
    Tiling,
    channel,
    footprint,
    im2col_footprint,
    pack_weights,
    sizes,
    weight_func,
    weight_shape,
)
from .store import scatter

__all__ = [
    "Sizes",
    "Tiling",
    "applies",
    "footprint",
    "im2col_footprint",
    "pack_weights",
    "prim_func",
    "sizes",
    "transform",
    "weight_func",
    "weight_shape",
]


def applies(spec: ConvSpec) -> str | None:
    """None if this file computes the convolution, else the reason why not."""
    if spec.groups != 1:
        return f"im2win needs groups 1, got {spec.groups}"
    if spec.dtype != "float32":
        return f"im2win computes float32, got {spec.dtype}"
    return common.too_large(spec)


def transform(data: te.Tensor, spec: ConvSpec, tiling: Tiling) -> te.Tensor:
    """win_I: (planes, rows, pitch), or (rows, pitch, planes) for `channels_last`."""
    z, (top, left, _, _) = sizes(spec, tiling), spec.padding
    planes = (z.planes, z.hb * z.bh, z.pitch)

    def compute(*index: Expr) -> Expr:
        row, q, c = index if tiling.channels_last else (*index[1:], index[0])
        n, oh = _row_position(spec, row)
        w, r = q // spec.r, q % spec.r
        if tiling.flat:
            w, c, r = unmix((z.pitch, spec.c, spec.r), q)
        guards = [c < spec.c] * (z.c_pad != spec.c) + [row < z.rows] * (z.hb * z.bh != z.rows)
        h = oh * spec.strides[0] + r * spec.dilations[0]
        return common.padded(data, spec, n, c, h - top, w - left, *guards)

    shape = (*planes[1:], z.planes) if tiling.channels_last else planes
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
    reader = _flat if tiling.flat else _staged if tiling.staged else _direct
    y = _sums(u, reader(windows, spec, tiling), spec, tiling)
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


def _direct(windows: te.Tensor, spec: ConvSpec, tiling: Tiling) -> Callable[..., Expr]:
    """read(step, ci, si, r, hb, wb, h, w): the element of I."""
    z = sizes(spec, tiling)

    def read(
        step: Expr, ci: Expr, si: Expr, r: Expr, hb: Expr, wb: Expr,
        h: Sequence[Expr], w: Sequence[Expr],
    ) -> Expr:  # fmt: skip
        c, row = channel(z, tiling, step, ci), hb * z.bh + mixed_radix(tiling.h_tile, h)
        column = (wb * z.bw + mixed_radix(tiling.w_tile, w)) * spec.strides[1]
        q = (column + (step % z.sb * z.bs + si) * spec.dilations[1]) * spec.r + r
        return windows[row, q, c] if tiling.channels_last else windows[c, row, q]

    return read


def _staged(windows: te.Tensor, spec: ConvSpec, tiling: Tiling) -> Callable[..., Expr]:
    """The same through win_T, whole vectors of a block's rows, and win_F, a thread's columns."""
    z, run = sizes(spec, tiling), tiling.w_tile[-1]

    def tile(step: Expr, hb: Expr, wb: Expr, line: Expr, q: Expr, lane: Expr) -> Expr:
        c, row = channel(z, tiling, step, line // z.bh), hb * z.bh + line % z.bh
        start = (wb * z.bw * spec.strides[1] + step % z.sb * z.bs * spec.dilations[1]) * spec.r
        return windows[c, row, start + q * z.vector + lane]

    lines, vectors = tiling.c_tile * z.bh, z.segment // z.vector
    shared = te.compute((z.steps, z.hb, z.wb, lines, vectors, z.vector), tile, name="win_T")
    outer = (z.steps, tiling.c_tile, z.hb, z.wb, *tiling.h_tile)

    def fragment(*index: Expr) -> Expr:
        *block, x, r = index
        step, ci, hb, wb, *h = block[: len(outer)]
        w = mixed_radix(tiling.w_tile[:-1], block[len(outer) :])
        q = (w * run * spec.strides[1] + x) * spec.r + r
        line = ci * z.bh + mixed_radix(tiling.h_tile, h)
        return shared[step, hb, wb, line, q // z.vector, q % z.vector]

    columns = (run - 1) * spec.strides[1] + (z.bs - 1) * spec.dilations[1] + 1
    local = te.compute((*outer, *tiling.w_tile[:-1], columns, spec.r), fragment, name="win_F")

    def read(
        step: Expr, ci: Expr, si: Expr, r: Expr, hb: Expr, wb: Expr,
        h: Sequence[Expr], w: Sequence[Expr],
    ) -> Expr:  # fmt: skip
        x = w[-1] * spec.strides[1] + si * spec.dilations[1]
        return local[(step, ci, hb, wb, *h, *w[:-1], x, r)]

    return read


def _flat(windows: te.Tensor, spec: ConvSpec, tiling: Tiling) -> Callable[..., Expr]:
    """The same with a step's vectors of each pixel in win_T, four words of them in win_F."""
    z, pixels = sizes(spec, tiling), (*tiling.h_tile, *tiling.w_tile)

    def tile(step: Expr, hb: Expr, wb: Expr, pixel: Expr, q: Expr, lane: Expr) -> Expr:
        row, w = hb * z.bh + pixel // z.bw, wb * z.bw + pixel % z.bw
        start = w * spec.strides[1] * spec.c * spec.r + step * tiling.flat
        return windows[0, row, start + q * 4 + lane]

    shape = (z.steps, z.hb, z.wb, z.bh * z.bw, *z.taps[1:])
    shared = te.compute(shape, tile, name="win_T")

    def fragment(step: Expr, hb: Expr, wb: Expr, *rest: Expr) -> Expr:
        *hw, q, lane = rest
        return shared[step, hb, wb, mixed_radix(pixels, hw), q, lane]

    local = te.compute((*shape[:3], *pixels, *z.taps[1:]), fragment, name="win_F")

    def read(
        step: Expr, ci: Expr, q: Expr, lane: Expr, hb: Expr, wb: Expr,
        h: Sequence[Expr], w: Sequence[Expr],
    ) -> Expr:  # fmt: skip
        return local[(step, hb, wb, *h, *w, q, lane)]

    return read


def _sums(u: te.Tensor, read: Callable[..., Expr], spec: ConvSpec, tiling: Tiling) -> te.Tensor:
    """win_Y; the reduction is over (step, c, s, r), the last three inside a step (`taps`)."""
    z, nk, nh = sizes(spec, tiling), 1 + len(tiling.k_tile), len(tiling.h_tile)
    steps = z.steps // tiling.parts
    extents = zip(("step", "rc", "rs", "rr"), (steps, *z.taps), strict=True)
    axes = [te.reduce_axis((0, extent), name) for name, extent in extents]
    order = (2, 3, 1) if tiling.channels_last else (1, 2, 3)

    def compute(*index: Expr) -> Expr:
        part, index = (index[0], index[1:]) if tiling.parts > 1 else (0, index)
        (hb, wb), h, w = index[nk : nk + 2], index[nk + 2 : nk + 2 + nh], index[nk + 2 + nh :]
        step = part * steps + axes[0]
        tap = [axes[i] for i in order]
        t = mixed_radix([z.steps, *(z.taps[i - 1] for i in order)], [step, *tap])
        value = read(step, *axes[1:], hb, wb, h, w)
        return te.sum(u[(index[0], t, *index[1:nk])] * value, axis=axes)

    shape = (z.kb, *tiling.k_tile, z.hb, z.wb, *tiling.h_tile, *tiling.w_tile)
    return te.compute((tiling.parts,) * (tiling.parts > 1) + shape, compute, name="win_Y")


def _sum_parts(y: te.Tensor) -> te.Tensor:
    part = te.reduce_axis((0, int(y.shape[0])), "part")
    return te.compute(y.shape[1:], lambda *i: te.sum(y[(part, *i)], axis=part), name="win_S")
