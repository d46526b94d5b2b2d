"""Winograd with C in parts, for convolutions too small to fill a GPU otherwise.

The output transform is linear: parts are summed behind it, where a tile of a filter is m * m words
and not alpha^2. Blocks as in winograd.py, but for

    wino_M  (E, S, Kb, *k_tile, Pb, *p_tile)     a part's C / S channels
    wino_Y  (S, Kb, *k_tile, Pb, *p_tile, m, m)  the workspace between two kernels; wino_Z alike
    wino_S  (Kb, *k_tile, Pb, *p_tile, m, m)     the parts' sum, first to last: deterministic

The workspace counts tiles, not output elements: every part of a tile is one access of m * m words
(16 bytes at m = 2), in every layout and at odd widths, and nothing needs a guard. Only wino_O,
behind the sum, knows the output.
"""

from __future__ import annotations

from tvm import te

from ..errors import UnsupportedError
from ..shapes import ConvSpec, Epilogue
from ..transforms import cook_toom
from . import winograd
from .common import Expr
from .winograd import Sizes, Tiling

BLOCKS = (*winograd.BLOCKS[:-1], "wino_S", winograd.BLOCKS[-1])


def prim_func(spec: ConvSpec, epilogue: Epilogue, tiling: Tiling, parts: int) -> Expr:
    """PrimFunc main(X, U[, B][, R], O), unscheduled; wino_O counts like wino_S.

    Args:
        tiling: `channel_outer`, and its c_tile a multiple of `parts`.
    Raises:
        UnsupportedError: `winograd.applies(spec)` gives a reason.
    """
    if reason := winograd.applies(spec):
        raise UnsupportedError(reason)

    def tiles(data: te.Tensor, u: te.Tensor, spec: ConvSpec, tiling: Tiling) -> te.Tensor:
        t, z = cook_toom(tiling.m, 3), winograd.sizes(spec, tiling)
        v = winograd.input_transform(data, spec, tiling, t, z)
        return _sum(winograd.output_transform(_gemm(u, v, tiling, z, parts), t))

    return winograd.tiled_prim_func(spec, epilogue, tiling, tiles)


def _gemm(u: te.Tensor, v: te.Tensor, tiling: Tiling, z: Sizes, parts: int) -> te.Tensor:
    """Part s of M: the sum over channels s * C / S to (s + 1) * C / S."""
    nk, channels = len(tiling.k_tile), z.c_pad // parts
    rc = te.reduce_axis((0, channels), "rc")

    def compute(e: Expr, s: Expr, *index: Expr) -> Expr:
        k, p, c = index[: nk + 1], index[nk + 1 :], s * channels + rc
        return te.sum(u[(c, e, *k)] * v[(c, e, *p)], axis=rc)

    shape = (u.shape[1], parts, *u.shape[2:], *v.shape[2:])
    return te.compute(shape, compute, name="wino_M")


def _sum(y: te.Tensor) -> te.Tensor:
    def compute(*index: Expr) -> Expr:
        out = y[(0, *index)]
        for s in range(1, int(y.shape[0])):
            out = out + y[(s, *index)]
        return out

    return te.compute(y.shape[1:], compute, name="wino_S")
