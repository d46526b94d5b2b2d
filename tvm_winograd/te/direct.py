"""Direct convolution as tensor expressions: any filter, stride, dilation, groups, layout, dtype.

    direct_P  the input, zero-padded to whole tiles, in the accumulation dtype   (if staged)
    direct_S  sums over c_chunk channels, tile-shaped                            (if chunked)
    direct_Y  the sum over (c, r, s), tile-shaped
    direct_O  epilogue and store, the output in the spec's layout

With the trivial `Tiling()` there is no direct_P and direct_Y is a plain nest in the output's
layout, which every generic scheduler can handle (dlight's GeneralReduction matches the loops of
direct_Y and direct_O by position). A schedule with register tiles asks for tile-shaped arrays:
K and the output map are padded to whole tiles here, so only direct_P (loads) and direct_O
(stores) need guards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from tvm import te, tirx

from ..errors import UnsupportedError
from ..shapes import ConvSpec, Epilogue
from . import common
from .common import Expr, ceil_div
from .store import scatter

BLOCKS = ("direct_P", "direct_Y", "direct_O")


@dataclass(frozen=True)
class Tiling:
    """Tile-shaped layouts: declared here so that a schedule's regions are tight.

    Y (n, Kb, Hb, Wb, h_tile, w_tile, k_tile), packed weights (Kb, r, s, c/groups, k_tile)
    with Kb = ceil(k / k_tile), Hb = ceil(oh / h_tile), Wb = ceil(ow / w_tile); weights stay
    (k, c/groups, r, s) when the tiling is trivial.
    """

    k_tile: int = 1  # filters of one block; must divide k/groups when there are groups
    h_tile: int = 1  # output rows of one block
    w_tile: int = 1  # output columns of one block
    flat: bool = False  # the map as one row of oh*ow pixels (see `can_flatten`)
    staged: bool = False  # direct_P exists
    wide_weights: bool = False  # packed weights in the accumulation dtype: no inner conversion
    c_chunk: int = 0  # channels summed before the sum is added to the rest; 0: one running sum
    # direct_P keeps the columns of each remainder by it together: those of a stride are neighbours
    apart: int = 1
    row: int = 1  # a row of direct_P is a multiple of it, of each remainder

    @property
    def trivial(self) -> bool:
        """No tiles: the accumulator has the shape of the output."""
        return (self.k_tile, self.h_tile, self.w_tile) == (1, 1, 1) and not self.flat


@dataclass(frozen=True)
class Sizes:
    """Everything derived from (spec, tiling)."""

    oh: int  # rows and columns of the output map, (1, oh*ow) when flat
    ow: int
    kb: int
    hb: int
    wb: int
    hp: int  # rows and columns of direct_P
    wp: int


def can_flatten(spec: ConvSpec) -> bool:
    """True when output pixel i depends on input pixel i only: 1x1, stride 1, no padding."""
    return (spec.r, spec.s, spec.stride, max(spec.padding)) == (1, 1, 1, 0)


def sizes(spec: ConvSpec, tiling: Tiling) -> Sizes:
    oh, ow = (1, spec.oh * spec.ow) if tiling.flat else (spec.oh, spec.ow)
    hb, wb = ceil_div(oh, tiling.h_tile), ceil_div(ow, tiling.w_tile)
    (sh, sw), (dh, dw) = spec.strides, spec.dilations
    hp = (hb * tiling.h_tile - 1) * sh + (spec.r - 1) * dh + 1
    wp = (wb * tiling.w_tile - 1) * sw + (spec.s - 1) * dw + 1
    wp = ceil_div(wp, tiling.apart * tiling.row) * tiling.apart * tiling.row
    return Sizes(oh, ow, ceil_div(spec.k, tiling.k_tile), hb, wb, hp, wp)


def illegal(spec: ConvSpec, tiling: Tiling) -> str | None:
    """None if the tiling fits this convolution, else the reason why not."""
    if tiling.flat and not can_flatten(spec):
        return "flat tiles need a 1x1 filter, stride 1 and no padding"
    if tiling.c_chunk and (tiling.trivial or (spec.c // spec.groups) % tiling.c_chunk):
        return f"c_chunk={tiling.c_chunk} must divide c/groups={spec.c // spec.groups}, in tiles"
    if tiling.apart > 1 and (spec.layout == "NHWC" or not tiling.staged):
        return f"columns {tiling.apart} apart are those of a staged input that is not NHWC"
    if spec.groups > 1 and (spec.k // spec.groups) % tiling.k_tile:
        return f"k_tile={tiling.k_tile} must divide k/groups={spec.k // spec.groups}"
    return None


def applies(spec: ConvSpec) -> str | None:
    """None if this file computes the convolution (32-bit indices), else the reason why not."""
    return common.too_large(spec)


def weight_dtype(spec: ConvSpec, tiling: Tiling) -> str:
    return spec.acc if tiling.wide_weights else spec.dtype


def weight_shape(spec: ConvSpec, tiling: Tiling) -> tuple[int, ...]:
    """Shape of the packed weights: (Kb, r, s, c/groups, k_tile), unchanged when trivial."""
    if tiling.trivial:
        return spec.weight_shape
    kb = ceil_div(spec.k, tiling.k_tile)
    return (kb, spec.r, spec.s, spec.c // spec.groups, tiling.k_tile)


def pack_weights(w: np.ndarray, spec: ConvSpec, tiling: Tiling) -> np.ndarray:
    """(k, c/groups, r, s) -> (Kb, r, s, c/groups, k_tile), zero filters behind the last."""
    wide = w.astype(spec.acc) if tiling.wide_weights else w
    if not tiling.trivial:
        kt = tiling.k_tile
        kb = ceil_div(spec.k, kt)
        wide = np.pad(wide, ((0, kb * kt - spec.k), (0, 0), (0, 0), (0, 0)))
        wide = wide.reshape(kb, kt, *w.shape[1:]).transpose(0, 3, 4, 2, 1)
    return np.ascontiguousarray(wide)


def weight_transform(w: te.Tensor, spec: ConvSpec, tiling: Tiling) -> te.Tensor:
    """`pack_weights` on the device: block direct_W."""
    dtype = weight_dtype(spec, tiling)

    def tiled(kb: Expr, r: Expr, s: Expr, c: Expr, ki: Expr) -> Expr:
        k = kb * tiling.k_tile + ki
        value = w[k, c, r, s].astype(dtype)
        if spec.k % tiling.k_tile == 0:
            return value
        return tirx.if_then_else(k < spec.k, value, tirx.const(0, dtype))

    def plain(k: Expr, c: Expr, r: Expr, s: Expr) -> Expr:
        return w[k, c, r, s].astype(dtype)

    compute = plain if tiling.trivial else tiled
    return te.compute(weight_shape(spec, tiling), compute, name="direct_W")


def prim_func(spec: ConvSpec, epilogue: Epilogue, tiling: Tiling) -> Expr:
    """PrimFunc main(X, W[, B][, R], O), unscheduled.

    direct_O counts output elements when the tiling is trivial, else it counts like direct_Y.

    Raises:
        UnsupportedError: `applies` or `illegal` gives a reason.
    """
    if reason := applies(spec) or illegal(spec, tiling):
        raise UnsupportedError(reason)
    data, extra = common.placeholders(spec, epilogue)
    w = te.placeholder(weight_shape(spec, tiling), weight_dtype(spec, tiling), name="W")
    y = _accumulate(_staged(data, spec, tiling) if tiling.staged else data, w, spec, tiling)
    if not tiling.trivial:
        func = te.create_prim_func([data, w, *extra, y])
        return scatter(func, spec, epilogue, lambda index: _place(index, spec, tiling), "direct_O")

    def value(n: Expr, k: Expr, h: Expr, w: Expr) -> Expr:
        at = {"N": n, "C": k, "H": h, "W": w}
        return y[tuple(at[axis] for axis in spec.layout)]

    out = common.output(spec, epilogue, extra, value, "direct_O")
    return te.create_prim_func([data, w, *extra, out])


def _place(
    index: Sequence[Expr], spec: ConvSpec, tiling: Tiling
) -> tuple[tuple[Expr, Expr, Expr, Expr], list[Expr]]:
    """(n, k, h, w) of an element of direct_Y, and the conditions under which it exists."""
    n, kb, hb, wb, hi, wi, ki = index
    z = sizes(spec, tiling)
    k, h, w = kb * tiling.k_tile + ki, hb * tiling.h_tile + hi, wb * tiling.w_tile + wi
    guards = [k < spec.k] * (z.kb * tiling.k_tile != spec.k)
    guards += [h < z.oh] * (z.hb * tiling.h_tile != z.oh)
    guards += [w < z.ow] * (z.wb * tiling.w_tile != z.ow)
    return (n, k, w // spec.ow, w % spec.ow) if tiling.flat else (n, k, h, w), guards


def weight_func(spec: ConvSpec, tiling: Tiling) -> Expr:
    """PrimFunc main(W, packed), unscheduled."""
    w = te.placeholder(spec.weight_shape, spec.dtype, name="W")
    return te.create_prim_func([w, weight_transform(w, spec, tiling)])


def _load(data: te.Tensor, spec: ConvSpec, tiling: Tiling, *at: Expr) -> Expr:
    """The input at (n, c, row, column) of the padded map, 0 outside; accumulation dtype."""
    n, c, h, w = at
    z, (top, left, _, _) = sizes(spec, tiling), spec.padding
    if tiling.flat:
        value = common.read(data, spec, n, c, w // spec.w, w % spec.w)
        if z.wp > spec.h * spec.w:
            value = tirx.if_then_else(w < spec.h * spec.w, value, tirx.const(0, spec.dtype))
    elif max(spec.padding) == 0 and z.hp <= spec.h and z.wp <= spec.w:
        value = common.read(data, spec, n, c, h, w)
    else:
        value = common.padded(data, spec, n, c, h - top, w - left)
    return value.astype(spec.acc)


def _staged(data: te.Tensor, spec: ConvSpec, tiling: Tiling) -> te.Tensor:
    """direct_P (n, c, hp, wp), or (n, hp, wp, c) when the input is NHWC; with columns `apart`
    (n, c, hp, apart, wp / apart), of no NHWC."""
    z, m = sizes(spec, tiling), tiling.apart

    def compute(*index: Expr) -> Expr:
        at = (*index[:3], index[4] * m + index[3]) if m > 1 else index
        n, c, h, w = (at[i] for i in ((0, 3, 1, 2) if spec.layout == "NHWC" else range(4)))
        return _load(data, spec, tiling, n, c, h, w)

    shape: tuple[int, ...] = (spec.n, spec.c, z.hp, z.wp)
    if spec.layout == "NHWC":
        shape = (spec.n, z.hp, z.wp, spec.c)
    if m > 1:
        shape = (*shape[:3], m, z.wp // m)
    return te.compute(shape, compute, name="direct_P")


def _accumulate(source: te.Tensor, w: te.Tensor, spec: ConvSpec, tiling: Tiling) -> te.Tensor:
    """direct_Y: the output's layout when trivial, else (n, Kb, Hb, Wb, h_tile, w_tile, k_tile)."""
    term = _terms(source, w, spec, tiling)
    chunk = tiling.c_chunk or spec.c // spec.groups
    rr, rs = te.reduce_axis((0, spec.r), "rr"), te.reduce_axis((0, spec.s), "rs")
    ro = te.reduce_axis((0, spec.c // spec.groups // chunk), "ro")
    rc = te.reduce_axis((0, chunk), "rc")

    def plain(*index: Expr) -> Expr:
        at = dict(zip(spec.layout, index, strict=True))
        return te.sum(term(at["N"], at["C"], 0, at["H"], at["W"], rr, rs, rc), [rr, rs, rc])

    if tiling.trivial:
        return te.compute(spec.output_shape, plain, name="direct_Y")
    z = sizes(spec, tiling)
    shape = (spec.n, z.kb, z.hb, z.wb, tiling.h_tile, tiling.w_tile, tiling.k_tile)

    def tiled(index: Sequence[Expr], r: Expr, s: Expr, c: Expr) -> Expr:
        n, kb, hb, wb, hi, wi, ki = index
        h, col = hb * tiling.h_tile + hi, wb * tiling.w_tile + wi
        return term(n, kb, ki, h, col, r, s, c)

    if not tiling.c_chunk:
        return te.compute(
            shape, lambda *i: te.sum(tiled(i, rr, rs, rc), [rr, rs, rc]), name="direct_Y"
        )
    parts = te.compute(
        (*shape, spec.r, spec.s, ro.dom.extent),
        lambda *i: te.sum(tiled(i[:7], i[7], i[8], i[9] * chunk + rc), rc),
        name="direct_S",
    )
    return te.compute(
        shape, lambda *i: te.sum(parts[(*i, rr, rs, ro)], [rr, rs, ro]), name="direct_Y"
    )


def _terms(source: te.Tensor, w: te.Tensor, spec: ConvSpec, tiling: Tiling) -> Callable[..., Expr]:
    """term(n, kb, ki, row, column, r, s, c): one product, c counted inside the group."""
    per_group, (sh, sw), (dh, dw) = spec.c // spec.groups, spec.strides, spec.dilations

    def term(n: Expr, kb: Expr, ki: Expr, h: Expr, col: Expr, r: Expr, s: Expr, c: Expr) -> Expr:
        group = (kb * tiling.k_tile) // (spec.k // spec.groups) if spec.groups > 1 else 0
        channel, h = group * per_group + c, h * sh + r * dh
        col = col * sw + s * dw
        if not tiling.staged:
            x = _load(source, spec, tiling, n, channel, h, col)
        elif spec.layout == "NHWC":
            x = source[n, h, col, channel]
        elif tiling.apart > 1:
            x = source[n, channel, h, col % tiling.apart, col // tiling.apart]
        else:
            x = source[n, channel, h, col]
        tap = w[kb, c, r, s] if tiling.trivial else w[kb, r, s, c, ki]
        return x * tap.astype(spec.acc)

    return term
