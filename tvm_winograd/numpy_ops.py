"""Relax operators in numpy: the table `OPS`, from operator name to function.

A function takes (attrs, argument arrays) and computes in the arrays' dtype. Convolution and batch
normalization are not here: evaluate.py handles them, because callers may hook them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .errors import UnsupportedError
from .reference import from_nchw, to_nchw

Op = Callable[..., Any]


def relu(_: Any, x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0)


def clip(_: Any, x: np.ndarray, low: Any, high: Any) -> np.ndarray:
    return np.clip(x, low, high).astype(x.dtype)


def sigmoid(_: Any, x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def softmax(attrs: Any, x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(axis=int(attrs.axis), keepdims=True))
    return e / e.sum(axis=int(attrs.axis), keepdims=True)


def max_pool(attrs: Any, x: np.ndarray) -> np.ndarray:
    return _pool(attrs, x, np.maximum, fill=-np.inf)


def avg_pool(attrs: Any, x: np.ndarray) -> np.ndarray:
    total = _pool(attrs, x, np.add, fill=0)
    if attrs.count_include_pad:
        return total / np.prod([int(v) for v in attrs.pool_size])
    return total / _pool(attrs, np.ones_like(x), np.add, fill=0)


def adaptive_avg_pool2d(attrs: Any, x: np.ndarray) -> np.ndarray:
    layout = str(attrs.layout)
    data = to_nchw(x, layout)
    h, w = data.shape[2:]
    size = [int(v) for v in attrs.output_size or (h, w)]
    oh, ow = size * (2 // len(size))
    out = np.empty((*data.shape[:2], oh, ow), x.dtype)
    for i, j in itertools.product(range(oh), range(ow)):
        rows = slice(i * h // oh, -(-(i + 1) * h // oh))
        cols = slice(j * w // ow, -(-(j + 1) * w // ow))
        out[:, :, i, j] = data[:, :, rows, cols].mean(axis=(2, 3))
    return from_nchw(out, layout)


def reduce_with(function: Callable[..., np.ndarray]) -> Op:
    """mean, sum, ... over attrs.axis (all axes if none)."""

    def op(attrs: Any, x: np.ndarray) -> np.ndarray:
        axis = None if attrs.axis is None else tuple(int(v) for v in attrs.axis)
        return np.asarray(function(x, axis=axis, keepdims=bool(attrs.keepdims)), x.dtype)

    return op


def reshape(_: Any, x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    return x.reshape(shape)


def flatten(_: Any, x: np.ndarray) -> np.ndarray:
    return x.reshape(-1)


def permute_dims(attrs: Any, x: np.ndarray) -> np.ndarray:
    return x.transpose(None if attrs.axes is None else [int(v) for v in attrs.axes])


def matmul(_: Any, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a @ b


def concat(attrs: Any, parts: tuple[np.ndarray, ...]) -> np.ndarray:
    if attrs.axis is None:
        return np.concatenate([p.reshape(-1) for p in parts])
    return np.concatenate(parts, axis=int(attrs.axis))


def split(attrs: Any, x: np.ndarray) -> tuple[np.ndarray, ...]:
    where = attrs.indices_or_sections
    parts = int(where) if isinstance(where, int) or hasattr(where, "value") else [*map(int, where)]
    return tuple(np.split(x, parts, axis=int(attrs.axis)))


def expand_dims(attrs: Any, x: np.ndarray) -> np.ndarray:
    return np.expand_dims(x, tuple(int(v) for v in attrs.axis))


def squeeze(attrs: Any, x: np.ndarray) -> np.ndarray:
    return np.squeeze(x, None if attrs.axis is None else tuple(int(v) for v in attrs.axis))


def broadcast_to(_: Any, x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    return np.broadcast_to(x, shape)


def pad(attrs: Any, x: np.ndarray) -> np.ndarray:
    mode, value = str(attrs.pad_mode), float(attrs.pad_value)
    if mode != "constant":
        raise UnsupportedError(f"relax.nn.pad mode {mode!r}: only constant padding is evaluated")
    widths = [int(v) for v in attrs.pad_width]
    return np.pad(x, list(zip(widths[::2], widths[1::2], strict=True)), constant_values=value)


def identity(_: Any, x: np.ndarray) -> np.ndarray:
    return x


def dropout(_: Any, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Inference: the input, and the mask nobody reads."""
    return x, np.ones_like(x)


def elementwise(function: Callable[..., np.ndarray]) -> Op:
    """A numpy function of the arguments alone, with numpy's broadcasting."""
    return lambda _, *args: function(*args)


OPS: dict[str, Op] = {
    "relax.add": elementwise(np.add),
    "relax.subtract": elementwise(np.subtract),
    "relax.multiply": elementwise(np.multiply),
    "relax.divide": elementwise(np.divide),
    "relax.maximum": elementwise(np.maximum),
    "relax.minimum": elementwise(np.minimum),
    "relax.power": elementwise(np.power),
    "relax.sqrt": elementwise(np.sqrt),
    "relax.rsqrt": elementwise(lambda x: 1 / np.sqrt(x)),
    "relax.negative": elementwise(np.negative),
    "relax.exp": elementwise(np.exp),
    "relax.log": elementwise(np.log),
    "relax.tanh": elementwise(np.tanh),
    "relax.abs": elementwise(np.abs),
    "relax.isnan": elementwise(np.isnan),
    "relax.where": elementwise(np.where),
    "relax.equal": elementwise(np.equal),
    "relax.less": elementwise(np.less),
    "relax.greater": elementwise(np.greater),
    "relax.clip": clip,
    "relax.sigmoid": sigmoid,
    "relax.nn.relu": relu,
    "relax.nn.relu6": elementwise(lambda x: np.clip(x, 0, 6)),
    "relax.nn.leakyrelu": lambda attrs, x: np.where(x > 0, x, x * float(attrs.alpha)),
    "relax.nn.silu": lambda attrs, x: x * sigmoid(attrs, x),
    "relax.nn.softmax": softmax,
    "relax.nn.max_pool2d": max_pool,
    "relax.nn.avg_pool2d": avg_pool,
    "relax.nn.avg_pool3d": avg_pool,
    "relax.nn.adaptive_avg_pool2d": adaptive_avg_pool2d,
    "relax.nn.pad": pad,
    "relax.nn.dropout": dropout,
    "relax.mean": reduce_with(np.mean),
    "relax.sum": reduce_with(np.sum),
    "relax.max": reduce_with(np.max),
    "relax.reshape": reshape,
    "relax.flatten": flatten,
    "relax.permute_dims": permute_dims,
    "relax.matmul": matmul,
    "relax.concat": concat,
    "relax.split": split,
    "relax.expand_dims": expand_dims,
    "relax.squeeze": squeeze,
    "relax.broadcast_to": broadcast_to,
    "relax.stop_lift_params": identity,
}


def _pool(attrs: Any, x: np.ndarray, combine: Callable[..., Any], fill: float) -> np.ndarray:
    """`combine` over each window of the spatial axes; cells outside the input hold `fill`."""
    layout = str(attrs.layout)
    spatial = [axis for axis, letter in enumerate(layout) if letter not in "NC"]
    pads = [int(v) for v in attrs.padding]
    if len(pads) < 2 * len(spatial):
        pads = pads * (2 * len(spatial) // len(pads))
    axes = [
        _Axis(attrs, i, x.shape[axis], pads[i], pads[i + len(spatial)])
        for i, axis in enumerate(spatial)
    ]
    widths = [(0, 0)] * x.ndim
    for axis, window in zip(spatial, axes, strict=True):
        widths[axis] = (window.before, window.after)
    data = np.pad(x, widths, constant_values=fill)
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
        self.before = before
        room = size + before + after - self.dilation * (self.window - 1) - 1
        self.out = (room + (self.stride - 1 if attrs.ceil_mode else 0)) // self.stride + 1
        needed = (self.out - 1) * self.stride + self.dilation * (self.window - 1) + 1
        self.after = max(after, needed - size - before)  # ceil_mode lets the last one overhang

    def taps(self) -> Iterator[slice]:
        for i in range(self.window):
            start = i * self.dilation
            yield slice(start, start + (self.out - 1) * self.stride + 1, self.stride)
