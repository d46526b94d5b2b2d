"""How im2win lays out its windows and weights: tile-shaped, in steps of the reduction."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import te, tirx

from ..shapes import ConvSpec
from .common import Expr, ceil_div, mixed_radix, product, unmix


@dataclass(frozen=True)
class Tiling:
    """Tile-shaped layouts: declared here so that a schedule's regions are tight.

    Y ([parts,] Kb, *k_tile, Hb, Wb, *h_tile, *w_tile)
    U (Kb, steps * c_tile * s_tile * R, *k_tile), a step's products together and in the order
    (c, s, r), for `channels_last` in (s, r, c), for `flat` in (s, c, r)
    """

    k_tile: tuple[int, ...] = (1,)  # filters of a block, outermost first
    h_tile: tuple[int, ...] = (1,)  # output rows of a block
    w_tile: tuple[int, ...] = (1,)  # output columns of a block; the last is a thread's run
    c_tile: int = 1  # channels of a step; C is padded to a multiple
    s_tile: int = 0  # filter columns of a step; S is padded to a multiple; 0: all
    parts: int = 1  # of C, each with a sum of its own
    staged: bool = False  # win_T and win_F exist
    # Words of a window in a step, all channels in a column, copied pixel by pixel in vectors
    # (c_tile and s_tile count no more); 0: columns of one channel, shared by a thread's run.
    flat: int = 0
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
    planes: int  # of I
    steps: int  # of the reduction, all parts together
    taps: tuple[int, int, int]  # of a step: channels, columns, rows; or 1, vectors, words
    vector: int  # words of a run that are always aligned together: 1, 2 or 4
    segment: int  # words of a row that a block needs in a step, whole vectors
    pitch: int  # words of a row of I

    @property
    def workspace(self) -> int:
        """Elements of I."""
        return self.planes * self.hb * self.bh * self.pitch

    @property
    def products(self) -> int:
        """Of a sum, those with padding included."""
        return self.steps * math.prod(self.taps)


def sizes(spec: ConvSpec, tiling: Tiling) -> Sizes:
    bk, bh, bw = product(tiling.k_tile), product(tiling.h_tile), product(tiling.w_tile)
    wb, column = ceil_div(spec.ow, bw), spec.r * (spec.c if tiling.flat else 1)
    tiles = spec.n * spec.oh, ceil_div(spec.k, bk), ceil_div(spec.n * spec.oh, bh), wb, bk, bh, bw
    # words between the starts of a block's and the next one's, a step's and the next one's windows
    block, bs = bw * spec.strides[1] * column, tiling.s_tile or spec.s
    if tiling.flat:
        steps, taps = ceil_div(spec.s * column, tiling.flat), (1, tiling.flat // 4, 4)
        pitch = (wb * bw - 1) * spec.strides[1] * column + steps * tiling.flat
        return Sizes(*tiles, spec.s, 1, spec.c, 1, steps, taps, 4, tiling.flat, pitch)
    sb, step = ceil_div(spec.s, bs), bs * spec.dilations[1] * column
    c_unit = tiling.c_tile * tiling.parts
    c_pad = ceil_div(spec.c, c_unit) * c_unit
    vector = math.gcd(4, *([block] * (wb > 1) + [step] * (sb > 1)))
    words = ((bw - 1) * spec.strides[1] + (bs - 1) * spec.dilations[1] + 1) * spec.r
    segment, last = ceil_div(words, vector) * vector, block * (wb - 1) + step * (sb - 1)
    pitch = ceil_div(last + segment, 4) * 4 if tiling.staged else last + words
    steps, taps = c_pad // tiling.c_tile * sb, (tiling.c_tile, bs, spec.r)
    return Sizes(*tiles, bs, sb, c_pad, c_pad, steps, taps, vector, segment, pitch)


def footprint(spec: ConvSpec) -> int:
    """Elements of the windows in memory order, N * C * OH * W * R, without padding to tiles.

    W counts the columns that some window meets.
    """
    columns = (spec.ow - 1) * spec.strides[1] + (spec.s - 1) * spec.dilations[1] + 1
    return spec.n * spec.c * spec.oh * columns * spec.r


def im2col_footprint(spec: ConvSpec) -> int:
    """Elements of im2col's matrix, N * C * OH * OW * R * S."""
    return spec.n * spec.c * spec.oh * spec.ow * spec.r * spec.s


def channel(z: Sizes, tiling: Tiling, step: Expr, ci: Expr) -> Expr:
    return step // z.sb * tiling.c_tile + ci


def weight_shape(spec: ConvSpec, tiling: Tiling) -> tuple[int, ...]:
    """Shape of the packed weights."""
    z = sizes(spec, tiling)
    return (z.kb, z.products, *tiling.k_tile)


def _tap(spec: ConvSpec, tiling: Tiling, t: Any) -> tuple[Any, Any, Any]:
    """(c, s, r) of the products `t` of a sum; beyond the filter where it is padded."""
    z = sizes(spec, tiling)
    if tiling.flat:
        s, c, r = unmix((z.products, spec.c, spec.r), t)
        return c, s, r
    if tiling.channels_last:
        step, si, r, ci = unmix((z.steps, z.bs, spec.r, tiling.c_tile), t)
    else:
        step, ci, si, r = unmix((z.steps, tiling.c_tile, z.bs, spec.r), t)
    return channel(z, tiling, step, ci), step % z.sb * z.bs + si, r


def pack_weights(w: np.ndarray, spec: ConvSpec, tiling: Tiling) -> np.ndarray:
    """(k, c, r, s) -> the packed weights, zeros behind the last filter, channel and column."""
    z = sizes(spec, tiling)
    c, s, r = _tap(spec, tiling, np.arange(z.products))
    pads = z.kb * z.bk - spec.k, c.max() + 1 - spec.c, 0, s.max() + 1 - spec.s
    padded = np.pad(w, [(0, max(0, pad)) for pad in pads])
    packed = padded[:, c, r, s].reshape(z.kb, *tiling.k_tile, z.products)
    return np.ascontiguousarray(np.moveaxis(packed, -1, 1))


def weight_func(spec: ConvSpec, tiling: Tiling) -> Expr:
    """PrimFunc main(W, packed), unscheduled: `pack_weights` on the device, block win_U."""
    z = sizes(spec, tiling)
    w = te.placeholder(spec.weight_shape, spec.dtype, name="W")

    def compute(kb: Expr, t: Expr, *ki: Expr) -> Expr:
        k, (c, s, r) = kb * z.bk + mixed_radix(tiling.k_tile, ki), _tap(spec, tiling, t)
        inside = tirx.all(k < spec.k, c < spec.c, s < spec.s)
        return tirx.if_then_else(inside, w[k, c, r, s], tirx.const(0.0, spec.dtype))

    packed = te.compute(weight_shape(spec, tiling), compute, name="win_U")
    return te.create_prim_func([w, packed])
