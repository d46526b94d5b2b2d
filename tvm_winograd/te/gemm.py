"""Convolution as one matrix product a group, M[k, p] = sum_q A[k, q] * B[q, p].

    gemm_X  the input element behind (q, p)   (g, Pb, q, p)   load, zero outside; storage dtype
    gemm_B  the same, accumulation dtype      (g, Pb, q, p)   p tile-shaped
    gemm_M  sum_q A * B                       (g, k, p)       k and p tile-shaped
    gemm_S  sum over parts of q               (g, k, p)       if q is split
    gemm_O  scatter, epilogue                 the output in the spec's layout

p counts output pixels, row-major over (n, oh, ow), or (oh, ow, n) for CHWN, so that neighbours in
p are neighbours in memory; q counts products: (r, s, c), or (c, r, s) with `taps_inner`. A holds
the weights, packed once. K/groups, P and q are padded to whole tiles here, so only gemm_X (loads)
and gemm_O (stores) need guards. Implicit GEMM keeps gemm_B in shared memory; with gemm_B in device
memory the same blocks are im2col (Chellapilla et al., 2006).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tvm import te, tirx

from ..errors import UnsupportedError
from ..shapes import ConvSpec, Epilogue
from . import common, direct
from .common import Expr, ceil_div, mixed_radix, product
from .store import scatter

BLOCKS = ("gemm_X", "gemm_B", "gemm_M", "gemm_O")


@dataclass(frozen=True)
class Tiling:
    """Tile-shaped layouts: declared here so that a schedule's regions are tight.

    A (G, Kb, Q, *k_tile), B (G, Pb, Q, *p_tile), M ([parts,] G, Kb, *k_tile, Pb, *p_tile)
    with Kb = ceil(k / G / prod(k_tile)), Pb = ceil(n * oh * ow / prod(p_tile)).
    """

    k_tile: tuple[int, int, int] = (1, 1, 1)  # filters of one block, outermost first
    p_tile: tuple[int, int, int] = (1, 1, 1)  # output pixels of one block, outermost first
    q_tile: int = 1  # products of one step; q is padded to whole steps
    parts: int = 1  # q is summed in this many parts of whole steps each
    taps_inner: bool = False  # q counts (c, r, s); else (r, s, c), c padded to whole steps
    # The last dimension of p_tile counts neighbours in memory (legal if `consecutive(spec)`); else
    # the middle one, a warp's lanes, does: stores of maps of 7x7 then fill whole sectors.
    vector: bool = False


@dataclass(frozen=True)
class Sizes:
    """Everything derived from (spec, tiling)."""

    filters: int  # of a group
    channels: int  # of a group
    c_pad: int  # channels of a tap in q
    q: int  # padded
    q_real: int  # what is not padding behind the last tap or channel
    p: int  # output pixels
    kb: int
    pb: int
    bk: int
    bp: int


def sizes(spec: ConvSpec, tiling: Tiling) -> Sizes:
    bk, bp, p = product(tiling.k_tile), product(tiling.p_tile), spec.n * spec.oh * spec.ow
    filters, channels = spec.k // spec.groups, spec.c // spec.groups
    c_pad = channels
    if not tiling.taps_inner:
        c_pad = ceil_div(channels, tiling.q_tile) * tiling.q_tile
    q_real, whole = spec.r * spec.s * c_pad, tiling.q_tile * tiling.parts
    q = ceil_div(q_real, whole) * whole
    kb, pb = ceil_div(filters, bk), ceil_div(p, bp)
    return Sizes(filters, channels, c_pad, q, q_real, p, kb, pb, bk, bp)


def applies(spec: ConvSpec) -> str | None:
    """None if this file computes the convolution (32-bit indices), else the reason why not."""
    return direct.applies(spec)


def consecutive(spec: ConvSpec) -> bool:
    """True when 4 pixels from a multiple of 4 on are 4 neighbours in the output's memory."""
    if spec.layout == "CHWN":
        return spec.n % 4 == 0
    return spec.layout == "NCHW" and spec.oh * spec.ow % 4 == 0


def input_consecutive(spec: ConvSpec) -> bool:
    """True when the same 4 pixels' input elements are 16 aligned bytes of float32, or padding."""
    if spec.layout == "CHWN":
        return spec.n % 4 == 0
    return consecutive(spec) and direct.can_flatten(spec)


def pixel(tiling: Tiling, index: Sequence[Expr], last: int | None = None) -> Expr:
    """p of the tile-shaped index (pb, *p); not beyond the pixel `last`, or its vector."""
    pb, p1, p0, p2 = index
    _, lanes, vector = tiling.p_tile
    row = pb * tiling.p_tile[0] + p1
    p = row * lanes + p0 if tiling.vector else (row * vector + p2) * lanes + p0
    if last is not None:
        p = tirx.min(p, last // vector if tiling.vector else last)
    return p * vector + p2 if tiling.vector else p


def position(spec: ConvSpec, p: Expr) -> tuple[Expr, Expr, Expr]:
    """(n, oh, ow) of output pixel p."""
    if spec.layout == "CHWN":
        return p % spec.n, p // spec.n // spec.ow, p // spec.n % spec.ow
    area = spec.oh * spec.ow
    return p // area, p % area // spec.ow, p % area % spec.ow


def weight_shape(spec: ConvSpec, tiling: Tiling) -> tuple[int, ...]:
    """Shape of the packed weights, in the accumulation dtype."""
    z = sizes(spec, tiling)
    return (spec.groups, z.kb, z.q, *tiling.k_tile)


def pack_weights(w: np.ndarray, spec: ConvSpec, tiling: Tiling) -> np.ndarray:
    """(k, c/groups, r, s) -> A (G, Kb, Q, *k_tile), accumulation dtype, zeros as padding."""
    z, groups = sizes(spec, tiling), spec.groups
    taps = w.astype(spec.acc).reshape(groups, z.filters, z.channels, spec.r * spec.s)
    taps = np.pad(taps, ((0, 0), (0, z.kb * z.bk - z.filters), (0, z.c_pad - z.channels), (0, 0)))
    a = (taps if tiling.taps_inner else taps.swapaxes(2, 3)).reshape(groups, z.kb * z.bk, z.q_real)
    a = np.pad(a, ((0, 0), (0, 0), (0, z.q - z.q_real)))
    packed = a.reshape(groups, z.kb, z.bk, z.q).swapaxes(2, 3)
    return np.ascontiguousarray(packed).reshape(weight_shape(spec, tiling))


def weight_func(spec: ConvSpec, tiling: Tiling) -> Expr:
    """PrimFunc main(W, A), unscheduled: `pack_weights` on the device, block gemm_A."""
    z = sizes(spec, tiling)
    w = te.placeholder(spec.weight_shape, spec.dtype, name="W")

    def compute(g: Expr, kb: Expr, q: Expr, *inner: Expr) -> Expr:
        k = kb * z.bk + mixed_radix(tiling.k_tile, inner)
        c, r, s = _product_index(q, spec, tiling, z)
        inside = tirx.all(k < z.filters, q < z.q_real, c < z.channels)
        value = w[g * z.filters + k, c, r, s].astype(spec.acc)
        return tirx.if_then_else(inside, value, tirx.const(0, spec.acc))

    return te.create_prim_func([w, te.compute(weight_shape(spec, tiling), compute, name="gemm_A")])


def prim_func(spec: ConvSpec, epilogue: Epilogue, tiling: Tiling) -> Expr:
    """PrimFunc main(X, A[, B][, R], O), unscheduled; gemm_O counts like gemm_M (less its parts).

    Raises:
        UnsupportedError: `applies(spec)` gives a reason.
    """
    if reason := applies(spec):
        raise UnsupportedError(reason)
    data, extra = common.placeholders(spec, epilogue)
    a = te.placeholder(weight_shape(spec, tiling), spec.acc, name="A")
    m = _product(a, _operand(data, spec, tiling), spec, tiling)
    func = te.create_prim_func([data, a, *extra, _sum(m) if tiling.parts > 1 else m])
    z = sizes(spec, tiling)

    def place(index: Sequence[Expr]) -> tuple[tuple[Expr, Expr, Expr, Expr], list[Expr]]:
        g, kb, *k = index[:5]
        p, k = pixel(tiling, index[5:]), kb * z.bk + mixed_radix(tiling.k_tile, k)
        n, h, w = position(spec, p)
        # A vector is whole or padding: one guard for all of it.
        first_k = k - index[4] if z.filters % tiling.k_tile[-1] == 0 else k
        first_p = p - index[-1] if tiling.vector else p
        guards = [first_k < z.filters] * (z.kb * z.bk != z.filters)
        guards += [first_p < z.p] * (z.pb * z.bp != z.p)
        return (n, g * z.filters + k, h, w), guards

    return scatter(func, spec, epilogue, place, "gemm_O")


def _operand(data: te.Tensor, spec: ConvSpec, tiling: Tiling) -> te.Tensor:
    """gemm_X and gemm_B."""
    z = sizes(spec, tiling)
    shape = (spec.groups, z.pb, z.q, *tiling.p_tile)

    def load(g: Expr, pb: Expr, q: Expr, *inner: Expr) -> Expr:
        # Pixels behind the last repeat it: their products are not stored, and need no guard.
        p = pixel(tiling, (pb, *inner), None if z.pb * z.bp == z.p else z.p - 1)
        c, r, s = _product_index(q, spec, tiling, z)
        guards = [q < z.q_real] * (z.q != z.q_real) + [c < z.channels] * (z.c_pad != z.channels)
        return _element(data, spec, g * z.channels + c, r, s, p, guards)

    x = te.compute(shape, load, name="gemm_X")
    return te.compute(shape, lambda *i: x[i].astype(spec.acc), name="gemm_B")


def _product_index(q: Expr, spec: ConvSpec, tiling: Tiling, z: Sizes) -> tuple[Expr, Expr, Expr]:
    """(c in its group, r, s) of product q."""
    if tiling.taps_inner:
        return q // (spec.r * spec.s), q // spec.s % spec.r, q % spec.s
    return q % z.c_pad, q // z.c_pad // spec.s, q // z.c_pad % spec.s


def _element(
    data: te.Tensor, spec: ConvSpec, c: Expr, r: Expr, s: Expr, p: Expr, guards: list[Expr]
) -> Expr:
    """Input channel c under tap (r, s) of output pixel p; 0 outside the map or a guard."""
    n, oh, ow = position(spec, p)
    top, left, _, _ = spec.padding
    (sh, sw), (dh, dw) = spec.strides, spec.dilations
    h, w = oh * sh + r * dh - top, ow * sw + s * dw - left
    below = (spec.oh - 1) * sh + (spec.r - 1) * dh - top
    behind = (spec.ow - 1) * sw + (spec.s - 1) * dw - left
    guards = guards + [h >= 0] * (top > 0) + [h < spec.h] * (below >= spec.h)
    guards += [w >= 0] * (left > 0) + [w < spec.w] * (behind >= spec.w)
    value = common.read(data, spec, n, c, h, w)
    if not guards:
        return value
    return tirx.if_then_else(tirx.all(*guards), value, tirx.const(0, spec.dtype))


def _product(a: te.Tensor, b: te.Tensor, spec: ConvSpec, tiling: Tiling) -> te.Tensor:
    """gemm_M; part i sums products i * Q / parts to (i + 1) * Q / parts."""
    z = sizes(spec, tiling)
    rq = te.reduce_axis((0, z.q // tiling.parts), "rq")

    def compute(*index: Expr) -> Expr:
        (g, kb, *k), (pb, *p) = index[-9:-4], index[-4:]
        q = index[0] * (z.q // tiling.parts) + rq if tiling.parts > 1 else rq
        return te.sum(a[(g, kb, q, *k)] * b[(g, pb, q, *p)], axis=rq)

    shape = (spec.groups, z.kb, *tiling.k_tile, z.pb, *tiling.p_tile)
    outer = (tiling.parts,) if tiling.parts > 1 else ()
    return te.compute((*outer, *shape), compute, name="gemm_M")


def _sum(m: te.Tensor) -> te.Tensor:
    """gemm_S: the parts' sum, first to last, so that a result is always the same."""

    def compute(*index: Expr) -> Expr:
        out = m[(0, *index)]
        for part in range(1, int(m.shape[0])):
            out = out + m[(part, *index)]
        return out

    return te.compute(m.shape[1:], compute, name="gemm_S")
