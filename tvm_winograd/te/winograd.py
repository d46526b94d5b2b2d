"""Winograd F(m x m, 3 x 3) as tensor expressions: O = A^T [(G g G^T) * (B^T d B)] A.

Lavin and Gray, arXiv 1509.09308, equations 11 and 12; the four steps of algorithm 1 as blocks

    wino_D  input patches       (c, p, alpha, alpha)   load, zero outside the map; storage dtype
    wino_T  B^T d               (c, p, alpha, alpha)
    wino_V  (B^T d) B           V, tile-shaped
    wino_M  sum_c U * V         M, tile-shaped          the batched GEMM
    wino_Z  A^T M               (k, p, m, alpha)       k and p tile-shaped
    wino_Y  (A^T M) A           (k, p, m, m)           k and p tile-shaped
    wino_O  scatter, epilogue   the output in the spec's layout

p counts m x m output tiles, row-major over (n, tile row, tile column), or (tile row, tile column,
n) for CHWN, so that neighbours in p are neighbours in memory; e = eps*alpha + nu.
K, C and P are padded to whole tiles here, so only wino_D (loads) and wino_O (stores) need guards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from tvm import te, tirx

from ..errors import UnsupportedError
from ..shapes import ConvSpec, Epilogue
from ..transforms import Transforms, cook_toom
from ..truth import reference
from . import common
from .common import Expr, ceil_div, mixed_radix, product, unmix
from .store import scatter

BLOCKS = ("wino_D", "wino_T", "wino_V", "wino_M", "wino_Z", "wino_Y", "wino_O")
Tiles = Callable[[te.Tensor, te.Tensor, ConvSpec, "Tiling"], te.Tensor]  # (X, U, ...) -> wino_Y


@dataclass(frozen=True)
class Tiling:
    """Tile-shaped layouts: declared here so that a schedule's regions are tight.

    channel_outer=True:  U (C, E, Kb, *k_tile), V (C, E, Pb, *p_tile)
    channel_outer=False: U (E, Kb, C, *k_tile), V (E, Pb, C, *p_tile)
    always:              M (E, Kb, *k_tile, Pb, *p_tile)
    with E = alpha^2, Kb = ceil(K / prod(k_tile)), Pb = ceil(P / prod(p_tile)).
    """

    m: int = 2
    k_tile: tuple[int, ...] = (1,)  # filters of one block, outermost first
    p_tile: tuple[int, ...] = (1,)  # output tiles of one block, outermost first
    c_tile: int = 1  # C is padded to a multiple of this
    channel_outer: bool = True
    overlap: bool = False  # the last two blocks share tiles; for `tiled_prim_func` only


@dataclass(frozen=True)
class Sizes:
    """Everything derived from (spec, tiling)."""

    rows: int  # output tiles per column of the map
    cols: int  # output tiles per row of the map
    p: int  # output tiles in all
    c_pad: int
    kb: int
    pb: int
    bk: int
    bp: int
    whole: bool  # every place of a block has a tile


def sizes(spec: ConvSpec, tiling: Tiling) -> Sizes:
    rows, cols = ceil_div(spec.oh, tiling.m), ceil_div(spec.ow, tiling.m)
    bk, bp, p = product(tiling.k_tile), product(tiling.p_tile), spec.n * rows * cols
    c_pad = ceil_div(spec.c, tiling.c_tile) * tiling.c_tile
    whole = p % bp == 0 or (tiling.overlap and p > bp)
    return Sizes(rows, cols, p, c_pad, ceil_div(spec.k, bk), ceil_div(p, bp), bk, bp, whole)


def tile_index(spec: ConvSpec, z: Sizes, n: Expr, row: Expr, col: Expr) -> Expr:
    """p of the output tile at (row, col) of image n."""
    if spec.layout == "CHWN":
        return (row * z.cols + col) * spec.n + n
    return (n * z.rows + row) * z.cols + col


def tile_position(spec: ConvSpec, z: Sizes, p: Expr) -> tuple[Expr, Expr, Expr]:
    """(n, row, col) of output tile p: the inverse of `tile_index`."""
    if spec.layout == "CHWN":
        return p % spec.n, p // spec.n // z.cols, p // spec.n % z.cols
    return p // (z.rows * z.cols), p // z.cols % z.rows, p % z.cols


def _tile_of(z: Sizes, p: Expr) -> Expr:
    """The output tile at place p of the tile-shaped layouts."""
    shared = z.whole and z.p % z.bp  # by the last two blocks
    return tirx.min(p // z.bp * z.bp, z.p - z.bp) + p % z.bp if shared else p


def applies(spec: ConvSpec) -> str | None:
    """None if Winograd computes this convolution, else the reason why not."""
    if (spec.r, spec.s) != (3, 3):
        return f"Winograd F(m x m, 3 x 3) needs a 3x3 filter, got {spec.r}x{spec.s}"
    for name in ("stride", "dilation", "groups"):
        if getattr(spec, name) != 1:
            return f"Winograd needs {name} 1, got {getattr(spec, name)}"
    if spec.acc != "float32":
        return f"Winograd divides in its transforms: no integers, got {spec.dtype}"
    return common.too_large(spec)


def weight_shape(spec: ConvSpec, tiling: Tiling) -> tuple[int, ...]:
    """Of the packed U."""
    z, e = sizes(spec, tiling), cook_toom(tiling.m, 3).alpha ** 2
    if tiling.channel_outer:
        return (z.c_pad, e, z.kb, *tiling.k_tile)
    return (e, z.kb, z.c_pad, *tiling.k_tile)


def pack_weights(w: np.ndarray, spec: ConvSpec, tiling: Tiling) -> np.ndarray:
    """U = G g G^T of (k, c, 3, 3) weights, computed in float64, packed, float32."""
    z, u = sizes(spec, tiling), reference.weight_transform(w, tiling.m)  # (c, e, k)
    padding = (0, z.c_pad - spec.c), (0, 0), (0, z.kb * z.bk - spec.k)
    u = np.pad(u.astype("float32"), padding).reshape(z.c_pad, -1, z.kb, *tiling.k_tile)
    return np.ascontiguousarray(u if tiling.channel_outer else np.moveaxis(u, 0, 2))


def weight_transform(w: te.Tensor, spec: ConvSpec, tiling: Tiling) -> te.Tensor:
    """The packed U on the device: blocks wino_Gg and wino_U, float32."""
    t, z = cook_toom(tiling.m, 3), sizes(spec, tiling)

    def tap(k: Expr, c: Expr, j: Expr, s: Expr) -> Expr:
        value, zero = w[k, c, j, s].astype("float32"), tirx.const(0.0, "float32")
        return tirx.if_then_else(tirx.all(k < spec.k, c < spec.c), value, zero)

    def row_of(i: Expr, term: Callable[[int], Expr]) -> Expr:
        return common.select_row(t.g, i, term, "float32", tirx.if_then_else)

    gg = te.compute(
        (z.kb * z.bk, z.c_pad, t.alpha, 3),
        lambda k, c, a, s: row_of(a, lambda j: tap(k, c, j, s)),
        name="wino_Gg",
    )

    def compute(*index: Expr) -> Expr:
        c, e, k = _unpack(index, tiling, tiling.k_tile, z.bk)
        row, col = e // t.alpha, e % t.alpha
        return row_of(col, lambda j: gg[k, c, row, j])

    return te.compute(weight_shape(spec, tiling), compute, name="wino_U")


def weight_func(spec: ConvSpec, tiling: Tiling) -> Expr:
    """PrimFunc main(W, U), unscheduled."""
    w = te.placeholder(spec.weight_shape, spec.dtype, name="W")
    return te.create_prim_func([w, weight_transform(w, spec, tiling)])


def conv(
    data: te.Tensor,
    u: te.Tensor,
    extra: list[te.Tensor],
    spec: ConvSpec,
    epilogue: Epilogue,
    tiling: Tiling,
) -> te.Tensor:
    """The convolution of `data` (spec.layout) with the packed U, epilogue included.

    Raises:
        UnsupportedError: `applies(spec)` gives a reason.
    """
    assert not tiling.overlap
    z, y = sizes(spec, tiling), _tiles(data, u, spec, tiling)

    def value(n: Expr, k: Expr, h: Expr, w: Expr) -> Expr:
        m = tiling.m
        p = tile_index(spec, z, n, h // m, w // m)
        k_index = (k // z.bk, *unmix(tiling.k_tile, k % z.bk))
        p_index = (p // z.bp, *unmix(tiling.p_tile, p % z.bp))
        return y[(*k_index, *p_index, h % m, w % m)]

    return common.output(spec, epilogue, extra, value, "wino_O")


def prim_func(spec: ConvSpec, epilogue: Epilogue, tiling: Tiling) -> Expr:
    """PrimFunc main(X, U[, B][, R], O), unscheduled; wino_O counts output elements."""
    data, extra = common.placeholders(spec, epilogue)
    u = te.placeholder(weight_shape(spec, tiling), "float32", name="U")
    return te.create_prim_func([data, u, *extra, conv(data, u, extra, spec, epilogue, tiling)])


def tiled_prim_func(
    spec: ConvSpec, epilogue: Epilogue, tiling: Tiling, tiles: Tiles | None = None
) -> Expr:
    """The same, but wino_O counts like wino_Y: (Kb, *k_tile, Pb, *p_tile, m, m).

    For schedules that fuse everything: whatever is ragged, their regions are whole tiles.
    `tiles` makes the tensor that wino_O reads, if it is not wino_Y (split.py).
    """
    data, extra = common.placeholders(spec, epilogue)
    u = te.placeholder(weight_shape(spec, tiling), "float32", name="U")
    func = te.create_prim_func([data, u, *extra, (tiles or _tiles)(data, u, spec, tiling)])
    z, m, nk = sizes(spec, tiling), tiling.m, 1 + len(tiling.k_tile)

    def place(index: Sequence[Expr]) -> tuple[tuple[Expr, Expr, Expr, Expr], list[Expr]]:
        *kp, i, j = index
        k = kp[0] * z.bk + mixed_radix(tiling.k_tile, kp[1:nk])
        p = kp[nk] * z.bp + mixed_radix(tiling.p_tile, kp[nk + 1 :])
        n, row, col = tile_position(spec, z, _tile_of(z, p))
        h, w = row * m + i, col * m + j
        guards = [k < spec.k] * (z.kb * z.bk != spec.k) + [p < z.p] * (not z.whole)
        guards += [h < spec.oh] * (z.rows * m != spec.oh) + [w < spec.ow] * (z.cols * m != spec.ow)
        return (n, k, h, w), guards

    return scatter(func, spec, epilogue, place, "wino_O")


def _tiles(data: te.Tensor, u: te.Tensor, spec: ConvSpec, tiling: Tiling) -> te.Tensor:
    """wino_D to wino_Y."""
    if reason := applies(spec):
        raise UnsupportedError(reason)
    t, z = cook_toom(tiling.m, 3), sizes(spec, tiling)
    m = _gemm(u, input_transform(data, spec, tiling, t, z), tiling, t, z)
    return output_transform(m, t)


def input_transform(
    data: te.Tensor, spec: ConvSpec, tiling: Tiling, t: Transforms, z: Sizes
) -> te.Tensor:
    top, left, _, _ = spec.padding
    patch = (z.c_pad, z.pb * z.bp, t.alpha, t.alpha)

    def load(c: Expr, p: Expr, a: Expr, b: Expr) -> Expr:
        n, row, col = tile_position(spec, z, _tile_of(z, p))
        h, w = row * t.m, col * t.m
        guards = [p < z.p] * (not z.whole) + [c < spec.c] * (z.c_pad != spec.c)
        return common.padded(data, spec, n, c, h + a - top, w + b - left, *guards)

    d = te.compute(patch, load, name="wino_D")

    def transformed(i: Expr, term: Callable[[int], Expr]) -> Expr:
        return common.select_row(t.bt, i, term, "float32", combine=common.even_odd)

    def columns(c: Expr, p: Expr, a: Expr, b: Expr) -> Expr:
        return transformed(a, lambda j: d[c, p, j, b].astype("float32"))

    bt_d = te.compute(patch, columns, name="wino_T")

    def compute(*index: Expr) -> Expr:
        c, e, p = _unpack(index, tiling, tiling.p_tile, z.bp)
        row, col = e // t.alpha, e % t.alpha
        return transformed(col, lambda j: bt_d[c, p, row, j])

    e = t.alpha**2
    outer = (z.c_pad, e, z.pb) if tiling.channel_outer else (e, z.pb, z.c_pad)
    return te.compute((*outer, *tiling.p_tile), compute, name="wino_V")


def _unpack(
    index: tuple[Expr, ...], tiling: Tiling, tile: tuple[int, ...], block: int
) -> tuple[Expr, Expr, Expr]:
    """(c, e, flat position) of an index into U or V."""
    if tiling.channel_outer:
        c, e, outer, *inner = index
    else:
        e, outer, c, *inner = index
    return c, e, outer * block + mixed_radix(tile, inner)


def _gemm(u: te.Tensor, v: te.Tensor, tiling: Tiling, t: Transforms, z: Sizes) -> te.Tensor:
    rc = te.reduce_axis((0, z.c_pad), "rc")
    nk = len(tiling.k_tile)

    def compute(e: Expr, *index: Expr) -> Expr:
        (kb, *k), (pb, *p) = index[: nk + 1], index[nk + 1 :]
        if tiling.channel_outer:
            term = u[(rc, e, kb, *k)] * v[(rc, e, pb, *p)]
        else:
            term = u[(e, kb, rc, *k)] * v[(e, pb, rc, *p)]
        return te.sum(term, axis=rc)

    shape = (t.alpha**2, z.kb, *tiling.k_tile, z.pb, *tiling.p_tile)
    return te.compute(shape, compute, name="wino_M")


def output_transform(m: te.Tensor, t: Transforms) -> te.Tensor:
    """Tile-shaped like M: with flat k and p a schedule would get M's bounding box."""
    outer = m.shape[1:]

    def rows(*index: Expr) -> Expr:
        *kp, i, b = index
        return common.select_row(t.at, i, lambda j: m[(j * t.alpha + b, *kp)], "float32")

    a_m = te.compute((*outer, t.m, t.alpha), rows, name="wino_Z")

    def columns(*index: Expr) -> Expr:
        *kp, i, j = index
        return common.select_row(t.at, j, lambda b: a_m[(*kp, i, b)], "float32")

    return te.compute((*outer, t.m, t.m), columns, name="wino_Y")
