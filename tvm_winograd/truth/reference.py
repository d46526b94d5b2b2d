"""Float64 numpy references: direct convolution, its epilogue, and Winograd step by step.

Arrays are NCHW (or `spec.layout` where a spec is given) and (k, c/groups, r, s); everything is
computed and returned in float64. Integers of int8 are exact in float64.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..shapes import ConvSpec, Epilogue
from ..transforms import Transforms, cook_toom


def to_nchw(x: np.ndarray, layout: str) -> np.ndarray:
    """`x` in `layout`, as an NCHW view."""
    return np.transpose(x, [layout.index(axis) for axis in "NCHW"])


def from_nchw(x: np.ndarray, layout: str) -> np.ndarray:
    """NCHW `x`, as a contiguous array in `layout`."""
    return np.ascontiguousarray(np.transpose(x, ["NCHW".index(axis) for axis in layout]))


def conv2d(spec: ConvSpec, x: np.ndarray, w: np.ndarray, dtype: str = "float64") -> np.ndarray:
    """Direct convolution by definition (one GEMM per filter tap), computed in `dtype`.

    Args:
        x: input in `spec.layout`.  w: weights (k, c/groups, r, s).
    Returns:
        The output in `spec.layout`, dtype `dtype`.
    """
    top, left, bottom, right = spec.padding
    data = to_nchw(np.asarray(x), spec.layout).astype(dtype)
    data = np.pad(data, ((0, 0), (0, 0), (top, bottom), (left, right)))
    weights = np.asarray(w).astype(dtype)
    out = np.zeros((spec.groups, spec.k // spec.groups, spec.n * spec.oh * spec.ow), dtype)
    for r in range(spec.r):
        for s in range(spec.s):
            tap = _tap(spec, data, r, s)  # (n, c, oh, ow)
            tap = np.ascontiguousarray(tap.transpose(1, 0, 2, 3)).reshape(
                spec.groups, -1, out.shape[2]
            )
            taps = weights[:, :, r, s].reshape(spec.groups, -1, weights.shape[1])
            out += taps @ tap
    nchw = out.reshape(spec.k, spec.n, spec.oh, spec.ow).transpose(1, 0, 2, 3)
    return from_nchw(nchw, spec.layout)


def apply_epilogue(
    spec: ConvSpec,
    epilogue: Epilogue,
    y: np.ndarray,
    bias: np.ndarray | None = None,
    residual: np.ndarray | None = None,
) -> np.ndarray:
    """y + bias(k), + residual (same layout as y), then the activation, as `epilogue` says."""
    if epilogue.bias:
        assert bias is not None
        shape = [spec.k if axis == "C" else 1 for axis in spec.layout]
        y = y + np.asarray(bias).astype(y.dtype).reshape(shape)
    if epilogue.residual:
        assert residual is not None
        y = y + np.asarray(residual).astype(y.dtype)
    return epilogue.applied.numpy(y) if epilogue.applied else y


def weight_transform(w: np.ndarray, m: int = 2) -> np.ndarray:
    """U = G g G^T: (k, c, 3, 3) -> (c, alpha*alpha, k), float64."""
    t = cook_toom(m, w.shape[2])
    _, g, _ = t.arrays()
    k, c, r, s = w.shape
    taps = np.ascontiguousarray(w.transpose(2, 3, 1, 0), dtype="float64").reshape(r, s * c * k)
    u = g @ (g @ taps).reshape(t.alpha, s, c * k)
    return u.reshape(t.alpha**2, c, k).swapaxes(0, 1)


def input_transform(d: np.ndarray, t: Transforms) -> np.ndarray:
    """V = B^T d B on the last two axes (alpha, alpha), float64."""
    _, _, bt = t.arrays()
    return bt @ d.astype("float64") @ bt.T


def winograd_conv2d(spec: ConvSpec, x: np.ndarray, w: np.ndarray, m: int = 2) -> np.ndarray:
    """The Winograd algorithm F(m x m, 3 x 3) in float64; stride 1, dilation 1, groups 1."""
    t = cook_toom(m, 3)
    at, _, _ = t.arrays()
    rows, cols = -(-spec.oh // m), -(-spec.ow // m)
    top, left, _, _ = spec.padding
    data = np.zeros((spec.n, spec.c, rows * m + 2, cols * m + 2))
    src = to_nchw(np.asarray(x), spec.layout)[:, :, : data.shape[2] - top, : data.shape[3] - left]
    data[:, :, top : top + src.shape[2], left : left + src.shape[3]] = src
    windows = np.lib.stride_tricks.sliding_window_view(data, (t.alpha, t.alpha), (2, 3))
    v = input_transform(windows[:, :, ::m, ::m], t)  # (n, c, rows, cols, alpha, alpha)
    u = weight_transform(w, m).reshape(spec.c, t.alpha, t.alpha, spec.k)
    prod = np.einsum("cabk,nchwab->nkhwab", u, v, optimize=True)
    y = at @ prod @ at.T  # (n, k, rows, cols, m, m)
    y = y.transpose(0, 1, 2, 4, 3, 5).reshape(spec.n, spec.k, rows * m, cols * m)
    return from_nchw(y[:, :, : spec.oh, : spec.ow], spec.layout)


def relative_error(got: np.ndarray, want: np.ndarray) -> float:
    """Frobenius norm of the difference over that of the reference; NaN counts as infinite."""
    got64, want64 = (np.asarray(array).astype("float64", copy=False) for array in (got, want))
    size = max(float(np.linalg.norm(want64)), 1e-300)
    error = float(np.linalg.norm(got64 - want64)) / size
    return error if np.isfinite(error) else float("inf")


def worst_error(got: Sequence[np.ndarray], want: Sequence[np.ndarray]) -> float:
    """The largest `relative_error` of several arrays."""
    return max(relative_error(g, w) for g, w in zip(got, want, strict=True))


def _tap(spec: ConvSpec, data: np.ndarray, r: int, s: int) -> np.ndarray:
    """The input elements filter tap (r, s) meets: (n, c, oh, ow)."""
    (sh, sw), (dh, dw) = spec.strides, spec.dilations
    h0, w0 = r * dh, s * dw
    h1, w1 = h0 + (spec.oh - 1) * sh + 1, w0 + (spec.ow - 1) * sw + 1
    return data[:, :, h0:h1:sh, w0:w1:sw]
