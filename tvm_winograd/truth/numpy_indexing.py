"""Relax operators that read or write where an index says, in numpy. As in numpy_ops.py, a function
takes (attrs, argument arrays)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import UnsupportedError

_REDUCTIONS: dict[str, Callable[..., Any]] = {
    "add": np.add.at,
    "mul": np.multiply.at,
    "min": np.minimum.at,
    "max": np.maximum.at,
}


def gather_elements(attrs: Any, x: np.ndarray, index: np.ndarray) -> np.ndarray:
    return x[_beside(index, int(attrs.axis))]


def scatter_elements(
    attrs: Any, x: np.ndarray, index: np.ndarray, updates: np.ndarray
) -> np.ndarray:
    return _written(x, _beside(index, int(attrs.axis)), updates, str(attrs.reduction))


def gather_nd(attrs: Any, x: np.ndarray, index: np.ndarray) -> np.ndarray:
    """The last axis of `index` holds coordinates; the first batch_dims axes go together."""
    batch = int(attrs.batch_dims)
    coordinates = list(np.moveaxis(index, -1, 0))
    grids = np.meshgrid(*(np.arange(n) for n in x.shape[:batch]), indexing="ij")
    ends = (1,) * (index.ndim - 1 - batch)
    return x[(*(grid.reshape(*grid.shape, *ends) for grid in grids), *coordinates)]


def scatter_nd(attrs: Any, x: np.ndarray, index: np.ndarray, updates: np.ndarray) -> np.ndarray:
    return _written(x, tuple(np.moveaxis(index, -1, 0)), updates, str(attrs.reduction))


def one_hot(attrs: Any, index: np.ndarray, on: Any, off: Any) -> np.ndarray:
    depth, axis = int(attrs.depth), int(attrs.axis)
    shape = [1] * (index.ndim + 1)
    shape[axis] = depth
    same = np.expand_dims(index, axis) == np.arange(depth).reshape(shape)
    return np.where(same, on, off)


def _beside(index: np.ndarray, axis: int) -> tuple[np.ndarray, ...]:
    """`index` along `axis`, and beside it every element's own position."""
    grids: list[Any] = list(np.indices(index.shape))
    grids[axis] = index
    return tuple(grids)


def _written(x: np.ndarray, where: Any, updates: np.ndarray, reduction: str) -> np.ndarray:
    out = x.copy()
    if reduction in ("update", "none"):
        out[where] = updates
    elif reduction in _REDUCTIONS:
        _REDUCTIONS[reduction](out, where, updates)
    else:
        raise UnsupportedError(f"scatter with the reduction {reduction!r} is not evaluated")
    return out


def roi_align(attrs: Any, x: np.ndarray, rois: np.ndarray) -> np.ndarray:
    """The mean (or largest) of bilinear samples in each cell of each box.

    A box is (image, left, top, right, bottom), in pixels of x over `spatial_scale`.
    """
    if str(attrs.layout) != "NCHW":
        raise UnsupportedError(f"vision.roi_align in {attrs.layout}: NCHW is evaluated")
    out = np.empty((len(rois), x.shape[1], *(int(v) for v in attrs.pooled_size)), x.dtype)
    for target, roi in zip(out, rois, strict=True):
        target[:] = _roi(attrs, x[int(roi[0])], roi[1:].astype("float64"))
    return out


def _roi(attrs: Any, image: np.ndarray, box: np.ndarray) -> np.ndarray:
    scaled = box * float(attrs.spatial_scale)  # of half a pixel the operator knows nothing
    samples = []
    for axis in (1, 0):  # rows, columns
        start, extent = scaled[axis], scaled[axis + 2] - scaled[axis]
        extent = extent if attrs.aligned else max(extent, 1.0)
        cells = int(attrs.pooled_size[1 - axis])
        cell = extent / cells
        count = int(attrs.sample_ratio)
        count = count if count > 0 else int(np.ceil(cell))
        at = np.arange(cells)[:, None] + (np.arange(count) + 0.5) / max(count, 1)
        samples.append(start + at * cell)
    rows, columns = samples
    values = _bilinear(image, rows[:, :, None, None], columns[None, None])
    reduce = np.max if str(attrs.mode) in ("max", "b'max'") else np.mean
    return np.asarray(reduce(values, axis=(2, 4)))


def _bilinear(image: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Samples of (c, h, w) at broadcast coordinates; 0 more than a pixel outside."""
    h, w = image.shape[1:]
    inside = (rows >= -1) & (rows <= h) & (columns >= -1) & (columns <= w)
    rows, columns = rows.clip(0, h - 1), columns.clip(0, w - 1)
    low, left = np.floor(rows).astype(int), np.floor(columns).astype(int)
    high, right = np.minimum(low + 1, h - 1), np.minimum(left + 1, w - 1)
    down, along = rows - low, columns - left
    total = (
        image[:, low, left] * (1 - down) * (1 - along)
        + image[:, low, right] * (1 - down) * along
        + image[:, high, left] * down * (1 - along)
        + image[:, high, right] * down * along
    )
    return np.where(inside, total, 0)


OPS: dict[str, Callable[..., Any]] = {
    "relax.gather_elements": gather_elements,
    "relax.scatter_elements": scatter_elements,
    "relax.gather_nd": gather_nd,
    "relax.scatter_nd": scatter_nd,
    "relax.one_hot": one_hot,
    "relax.vision.roi_align": roi_align,
}
