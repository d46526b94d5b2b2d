"""Relax operators over the height and width of a map, in numpy: pooling, resizing, transposed
convolution. As in numpy_ops.py, a function takes (attrs, argument arrays)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..errors import UnsupportedError
from .reference import from_nchw, to_nchw


def max_pool(attrs: Any, x: np.ndarray) -> np.ndarray:
    return _pool(attrs, x, np.maximum, fill=-np.inf)


def avg_pool(attrs: Any, x: np.ndarray) -> np.ndarray:
    total = _pool(attrs, x, np.add, fill=0)
    padding = 1 if attrs.count_include_pad else 0
    return total / _pool(attrs, np.ones_like(x), np.add, fill=padding, beyond=0)


def adaptive_avg_pool(attrs: Any, x: np.ndarray) -> np.ndarray:
    """Means of windows of nearly one size; one axis after the other, as their windows are alike
    along the others."""
    spatial = [axis for axis, letter in enumerate(str(attrs.layout)) if letter not in "NC"]
    sizes = [int(v) for v in attrs.output_size or [x.shape[axis] for axis in spatial]]
    sizes = sizes * (len(spatial) // len(sizes))
    for axis, out in zip(spatial, sizes, strict=True):
        n = x.shape[axis]
        bounds = [(i * n // out, -(-(i + 1) * n // out)) for i in range(out)]
        parts = [x.take(range(*bound), axis).mean(axis=axis) for bound in bounds]
        x = np.stack(parts, axis)
    return x


def conv_nd(attrs: Any, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """conv1d and conv3d: a product for each tap of the filter."""
    layout, kernel = str(attrs.data_layout), str(attrs.kernel_layout)
    letters = layout.translate(str.maketrans("", "", "NC"))
    data = x.transpose([layout.index(a) for a in f"NC{letters}"])
    w = weight.transpose([kernel.index(a) for a in f"OI{letters}"])
    rank, groups, pads = len(letters), int(attrs.groups), [int(v) for v in attrs.padding]
    strides, dilations = ([int(v) for v in a] for a in (attrs.strides, attrs.dilation))
    data = np.pad(data, [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)])
    sizes = [
        (n - d * (r - 1) - 1) // s + 1
        for n, r, s, d in zip(data.shape[2:], w.shape[2:], strides, dilations, strict=True)
    ]
    k = w.shape[0] // groups
    data = data.reshape(len(data), groups, -1, *data.shape[2:])
    w = w.reshape(groups, k, *w.shape[1:])
    out = np.zeros((len(data), groups, k, *sizes), x.dtype)
    for tap in itertools.product(*map(range, w.shape[3:])):
        index: list[Any] = [
            slice(t * d, t * d + (n - 1) * s + 1, s)
            for t, d, n, s in zip(tap, dilations, sizes, strides, strict=True)
        ]
        whole: tuple[Any, ...] = (slice(None),) * 3
        out += np.einsum("gkc,ngc...->ngk...", w[(*whole, *tap)], data[(*whole, *index)])
    out = out.reshape(len(data), groups * k, *sizes)
    return out.transpose([f"NC{letters}".index(a) for a in layout])


def conv2d_transpose(attrs: Any, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Each input pixel adds its multiple of the filter to the output, `strides` apart."""
    layout, kernel = str(attrs.data_layout), str(attrs.kernel_layout)
    if sorted(layout) != sorted("NCHW") or sorted(kernel) != sorted("IOHW"):
        raise UnsupportedError(f"conv2d_transpose from {layout} and {kernel}: 4 axes are evaluated")
    data = to_nchw(x, layout)
    w = np.transpose(weight, [kernel.index(axis) for axis in "IOHW"])  # (c, k/groups, r, s)
    groups, (n, c, h, width) = int(attrs.groups), data.shape
    (sh, sw), (dh, dw) = (_pair(v) for v in (attrs.strides, attrs.dilation))
    k, r, s = w.shape[1:]
    out = np.zeros(
        (n, groups, k, (h - 1) * sh + (r - 1) * dh + 1, (width - 1) * sw + (s - 1) * dw + 1),
        x.dtype,
    )
    data = data.reshape(n, groups, c // groups, h * width)
    taps = w.reshape(groups, c // groups, k, r, s)
    for i, j in itertools.product(range(r), range(s)):
        tap = (taps[..., i, j].swapaxes(1, 2) @ data).reshape(n, groups, k, h, width)
        rows = slice(i * dh, i * dh + (h - 1) * sh + 1, sh)
        out[:, :, :, rows, slice(j * dw, j * dw + (width - 1) * sw + 1, sw)] += tap
    return from_nchw(_cropped(attrs, out.reshape(n, groups * k, *out.shape[3:])), layout)


def _cropped(attrs: Any, out: np.ndarray) -> np.ndarray:
    """`out` without the padding, and with output_padding rows and columns more at the end."""
    top, left, bottom, right = (int(v) for v in attrs.padding)
    more_h, more_w = _pair(attrs.output_padding)
    out = np.pad(out, ((0, 0), (0, 0), (0, more_h), (0, more_w)))
    return out[:, :, top : out.shape[2] - bottom, left : out.shape[3] - right]


def resize2d(attrs: Any, x: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """The map at `size` = (height, width): nearest pixel, or linear between the two around."""
    layout, method = str(attrs.layout), str(attrs.method)
    if method not in ("linear", "nearest_neighbor"):
        raise UnsupportedError(
            f"resize2d by {method}: linear and nearest_neighbor are evaluated; export another mode"
        )
    for axis, out in zip("HW", size, strict=True):
        along = layout.index(axis)
        exact = np.dtype("float64") if method == "nearest_neighbor" else x.dtype
        mode = str(attrs.coordinate_transformation_mode)
        where = _sources(mode, x.shape[along], int(out), exact)
        if method == "linear":
            x = _between(x, along, where)
        else:
            nearest = _ROUNDINGS[str(attrs.rounding_method)](where)
            x = np.take(x, _inside(nearest, x.shape[along]), along)
    return x


def _sources(mode: str, size: int, out: int, dtype: np.dtype) -> np.ndarray:
    """The coordinate in the input, `size` pixels long, of each of `out` pixels."""
    at = np.arange(out, dtype=dtype)  # multiplied before divided: whole results stay whole
    if mode == "asymmetric":
        return at * size / out
    if mode == "align_corners":
        return at * (size - 1) / max(out - 1, 1)
    if mode == "pytorch_half_pixel" and out == 1:
        return at
    if mode in ("half_pixel", "pytorch_half_pixel"):
        return (2 * at + 1) * size / (2 * out) - 0.5
    raise UnsupportedError(
        f"resize2d with coordinates {mode}: half_pixel, pytorch_half_pixel, align_corners and "
        "asymmetric are evaluated"
    )


def _between(x: np.ndarray, axis: int, where: np.ndarray) -> np.ndarray:
    """Linear interpolation along `axis`; what lies outside repeats the edge."""
    low = np.floor(where)
    shape = [-1 if i == axis else 1 for i in range(x.ndim)]
    part = (where - low).astype(x.dtype).reshape(shape)
    first, second = (np.take(x, _inside(low + i, x.shape[axis]), axis) for i in (0, 1))
    return first * (1 - part) + second * part


_ROUNDINGS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "round": np.rint,  # as TVM: ties to even
    "round_prefer_floor": lambda v: np.ceil(v - 0.5),
    "round_prefer_ceil": lambda v: np.floor(v + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


def _inside(index: np.ndarray, size: int) -> np.ndarray:
    return np.clip(index, 0, size - 1).astype("int64")


def _pair(values: Any) -> tuple[int, int]:
    first, *rest = (int(v) for v in values)
    return first, rest[0] if rest else first


def _pool(
    attrs: Any,
    x: np.ndarray,
    combine: Callable[..., Any],
    fill: float,
    beyond: float | None = None,
) -> np.ndarray:
    """`combine` over each window of the spatial axes; the padding holds `fill`, and so do cells
    behind it that a window overhangs, if not `beyond`."""
    layout = str(attrs.layout)
    spatial = [axis for axis, letter in enumerate(layout) if letter not in "NC"]
    pads = [int(v) for v in attrs.padding]
    if len(pads) < 2 * len(spatial):
        pads = pads * (2 * len(spatial) // len(pads))
    axes = [
        _Axis(attrs, i, x.shape[axis], pads[i], pads[i + len(spatial)])
        for i, axis in enumerate(spatial)
    ]
    widths, overhang = [(0, 0)] * x.ndim, [(0, 0)] * x.ndim
    for axis, window in zip(spatial, axes, strict=True):
        widths[axis], overhang[axis] = (window.before, window.after), (0, window.overhang)
    data = np.pad(x, widths, constant_values=fill)
    data = np.pad(data, overhang, constant_values=fill if beyond is None else beyond)
    out: np.ndarray | None = None
    for taps in itertools.product(*(window.taps() for window in axes)):
        index = [slice(None)] * x.ndim
        for axis, tap in zip(spatial, taps, strict=True):
            index[axis] = tap
        piece = data[tuple(index)]
        out = piece.copy() if out is None else combine(out, piece, out=out)
    assert out is not None
    return out


class _Axis:
    """One axis of a pooling window."""

    def __init__(self, attrs: Any, index: int, size: int, before: int, after: int) -> None:
        self.window = int(attrs.pool_size[index])
        self.stride = int(attrs.strides[index])
        self.dilation = int(attrs.dilation[index])
        self.before, self.after = before, after
        room = size + before + after - self.dilation * (self.window - 1) - 1
        self.out = (room + (self.stride - 1 if attrs.ceil_mode else 0)) // self.stride + 1
        if attrs.ceil_mode and (self.out - 1) * self.stride >= size + before:
            self.out -= 1  # a window behind the map and the padding before it
        needed = (self.out - 1) * self.stride + self.dilation * (self.window - 1) + 1
        self.overhang = max(needed - size - before - after, 0)  # of the last one, by ceil_mode

    def taps(self) -> Iterator[slice]:
        for i in range(self.window):
            start = i * self.dilation
            yield slice(start, start + (self.out - 1) * self.stride + 1, self.stride)
