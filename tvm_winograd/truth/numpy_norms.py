"""Relax operators in numpy: normalizations, activations and indexing. As in numpy_ops.py, a
function takes (attrs, argument arrays)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .. import activation
from ..errors import UnsupportedError


def erf(_: Any, x: np.ndarray) -> np.ndarray:
    return activation.erf(x)


def gelu(attrs: Any, x: np.ndarray) -> np.ndarray:
    return x * (1 + activation.erf(x / math.sqrt(2))) / 2


def gelu_tanh(_: Any, x: np.ndarray) -> np.ndarray:
    return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


def log_softmax(attrs: Any, x: np.ndarray) -> np.ndarray:
    axis = int(attrs.axis)
    shifted = x - x.max(axis=axis, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True))


def layer_norm(attrs: Any, x: np.ndarray, gamma: np.ndarray, beta: np.ndarray) -> np.ndarray:
    axes = sorted(int(v) % x.ndim for v in attrs.axes)
    return _scaled(attrs, _normalized(x, tuple(axes), float(attrs.epsilon)), gamma, beta, axes)


def group_norm(attrs: Any, x: np.ndarray, gamma: np.ndarray, beta: np.ndarray) -> np.ndarray:
    channel, groups = int(attrs.channel_axis) % x.ndim, int(attrs.num_groups)
    split = (*x.shape[:channel], groups, x.shape[channel] // groups, *x.shape[channel + 1 :])
    axes = [channel + 1, *(int(v) % x.ndim + (int(v) % x.ndim > channel) for v in attrs.axes)]
    out = _normalized(x.reshape(split), tuple(axes), float(attrs.epsilon)).reshape(x.shape)
    return _scaled(attrs, out, gamma, beta, [channel])


def instance_norm(attrs: Any, x: np.ndarray, gamma: np.ndarray, beta: np.ndarray) -> np.ndarray:
    axes = tuple(int(v) % x.ndim for v in attrs.axes)
    out = _normalized(x, axes, float(attrs.epsilon))
    return _scaled(attrs, out, gamma, beta, [int(attrs.channel_axis) % x.ndim])


def _scaled(
    attrs: Any, x: np.ndarray, gamma: np.ndarray, beta: np.ndarray, axes: Sequence[int]
) -> np.ndarray:
    out = x * _along(x, gamma, axes) if attrs.scale else x
    return out + _along(x, beta, axes) if attrs.center else out


def _along(x: np.ndarray, values: np.ndarray, axes: Sequence[int]) -> np.ndarray:
    """`values` as an array that broadcasts over all axes of x but these."""
    return values.reshape([n if i in axes else 1 for i, n in enumerate(x.shape)])


def _normalized(x: np.ndarray, axes: tuple[int, ...], epsilon: float) -> np.ndarray:
    centred = x - x.mean(axis=axes, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=axes, keepdims=True) + epsilon)


def strided_slice(
    _: Any,
    x: np.ndarray,
    axes: Sequence[int],
    begin: Sequence[int],
    end: Sequence[int],
    strides: Sequence[int] | None = None,
) -> np.ndarray:
    index = [slice(None)] * x.ndim
    for i, axis in enumerate(axes):
        index[axis] = slice(begin[i], end[i], strides[i] if strides else 1)
    return x[tuple(index)]


def take(attrs: Any, x: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Outside the tensor a kernel reads what lies there: so that is an error here."""
    axis = None if attrs.axis is None else int(attrs.axis)
    size, mode = x.size if axis is None else x.shape[axis], str(attrs.mode)
    if mode == "fast" and np.size(index) and not 0 <= np.min(index) <= np.max(index) < size:
        raise UnsupportedError(f"take reads at {np.min(index)} to {np.max(index)} of {size}")
    how: Any = mode if mode in ("clip", "wrap") else "raise"
    return np.asarray(np.take(x, index, axis, mode=how))


def tile(attrs: Any, x: np.ndarray) -> np.ndarray:
    return np.tile(x, [int(v) for v in attrs.repeats])


def filled(value: float) -> Callable[..., np.ndarray]:
    """zeros, ones."""
    return lambda attrs, shape: np.full(shape, value, str(attrs.dtype))


def filled_like(value: float) -> Callable[..., np.ndarray]:
    """zeros_like, ones_like; floats keep the precision of the evaluation."""
    return lambda attrs, x: np.full_like(x, value)


def full(attrs: Any, shape: Sequence[int], value: np.ndarray) -> np.ndarray:
    return np.full(shape, value)


def arange(attrs: Any, start: float, end: float, step: float) -> np.ndarray:
    return np.arange(start, end, step).astype(str(attrs.dtype))


def prelu(attrs: Any, x: np.ndarray, slope: np.ndarray) -> np.ndarray:
    shape = [-1 if i == int(attrs.axis) % x.ndim else 1 for i in range(x.ndim)]
    return np.where(x < 0, x * slope.reshape(shape), x)


def extreme_index(function: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """argmax, argmin."""

    def op(attrs: Any, x: np.ndarray) -> np.ndarray:
        axis = None if attrs.axis is None else int(attrs.axis)
        return np.asarray(function(x, axis=axis, keepdims=bool(attrs.keepdims)))

    return op
