"""Relax operators in numpy: the table `OPS`, from operator name to function.

A function takes (attrs, argument arrays) and computes in the arrays' dtype. Convolution and batch
normalization are not here: evaluate.py handles them, because callers may hook them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import UnsupportedError
from . import numpy_indexing as indexing
from . import numpy_maps as maps
from . import numpy_norms as norms

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


def astype(attrs: Any, x: np.ndarray) -> np.ndarray:
    """Floats keep the precision of the evaluation."""
    dtype = np.dtype(str(attrs.dtype))
    return x if dtype.kind == x.dtype.kind == "f" else x.astype(dtype)


def identity(_: Any, x: np.ndarray) -> np.ndarray:
    return x


def dropout(_: Any, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Inference: the input, and the mask nobody reads."""
    return x, np.ones_like(x)


def elementwise(function: Callable[..., np.ndarray]) -> Op:
    """A numpy function of the arguments alone, with numpy's broadcasting."""
    return lambda _, *args: function(*args)


# relax.NAME is numpy's function of the same name
_SAME_NAME = (
    "acosh acos asinh asin atanh atan atan2 cos cosh sin sinh tan tanh trunc isfinite isinf "
    "isnan less_equal greater_equal not_equal equal less greater logical_and logical_or "
    "logical_xor logical_not bitwise_and bitwise_or bitwise_xor bitwise_not left_shift "
    "right_shift floor_divide add subtract multiply divide maximum minimum power sqrt negative "
    "exp log abs where sign square floor ceil outer "
).split()
_RENAMED = {"acosh": "arccosh", "acos": "arccos", "asinh": "arcsinh", "asin": "arcsin"}
_RENAMED |= {"atanh": "arctanh", "atan": "arctan", "atan2": "arctan2"}


def divide(_: Any, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Of integers cut off, as a kernel does it."""
    if np.result_type(a, b).kind in "iu":
        return np.trunc(a / b).astype(np.result_type(a, b))
    return np.divide(a, b)


def softplus(attrs: Any, x: np.ndarray) -> np.ndarray:
    beta, threshold = float(attrs.beta), float(attrs.threshold)
    return np.where(x * beta > threshold, x, np.logaddexp(0, x * beta) / beta)


def triangle(function: Callable[..., np.ndarray]) -> Op:
    """tril, triu."""
    return lambda _, x, k: function(x, int(k))


OPS: dict[str, Op] = {
    **{f"relax.{n}": elementwise(getattr(np, _RENAMED.get(n, n))) for n in _SAME_NAME},
    **indexing.OPS,
    "relax.divide": divide,
    "relax.log_add_exp": elementwise(np.logaddexp),
    "relax.nn.softplus": softplus,
    "relax.tril": triangle(np.tril),
    "relax.triu": triangle(np.triu),
    "relax.rsqrt": elementwise(lambda x: 1 / np.sqrt(x)),
    "relax.clip": clip,
    "relax.sigmoid": sigmoid,
    "relax.nn.relu": relu,
    "relax.nn.relu6": elementwise(lambda x: np.clip(x, 0, 6)),
    "relax.nn.leakyrelu": lambda attrs, x: np.where(x > 0, x, x * float(attrs.alpha)),
    "relax.nn.silu": lambda attrs, x: x * sigmoid(attrs, x),
    "relax.nn.softmax": softmax,
    **{f"relax.nn.max_pool{n}d": maps.max_pool for n in (1, 2, 3)},
    **{f"relax.nn.avg_pool{n}d": maps.avg_pool for n in (1, 2, 3)},
    **{f"relax.nn.adaptive_avg_pool{n}d": maps.adaptive_avg_pool for n in (1, 2, 3)},
    "relax.nn.conv1d": maps.conv_nd,
    "relax.nn.conv3d": maps.conv_nd,
    "relax.nn.conv2d_transpose": maps.conv2d_transpose,
    "relax.image.resize2d": maps.resize2d,
    "relax.nn.pad": pad,
    "relax.nn.dropout": dropout,
    "relax.mean": reduce_with(np.mean),
    "relax.sum": reduce_with(np.sum),
    "relax.max": reduce_with(np.max),
    "relax.min": reduce_with(np.min),
    "relax.prod": reduce_with(np.prod),
    "relax.variance": reduce_with(np.var),
    "relax.std": reduce_with(np.std),
    "relax.argmax": norms.extreme_index(np.argmax),
    "relax.argmin": norms.extreme_index(np.argmin),
    "relax.astype": astype,
    "relax.zeros": norms.filled(0),
    "relax.ones": norms.filled(1),
    "relax.zeros_like": norms.filled_like(0),
    "relax.ones_like": norms.filled_like(1),
    "relax.full": norms.full,
    "relax.full_like": lambda _, x, value: np.full_like(x, value),
    "relax.arange": norms.arange,
    "relax.shape_of": lambda _, x: tuple(x.shape),
    "relax.shape_to_tensor": lambda _, shape: np.array(shape, "int64"),
    "relax.tensor_to_shape": lambda _, x: tuple(int(v) for v in x),
    "relax.repeat": lambda attrs, x: np.repeat(
        x, int(attrs.repeats), None if attrs.axis is None else int(attrs.axis)
    ),
    "relax.nn.batch_flatten": lambda _, x: x.reshape(len(x), -1),
    "relax.flip": lambda attrs, x: np.flip(x, int(attrs.axis)),
    "relax.stack": lambda attrs, parts: np.stack(parts, int(attrs.axis)),
    "relax.mod": elementwise(np.fmod),
    "relax.floor_mod": elementwise(np.mod),
    "relax.nn.prelu": norms.prelu,
    "relax.erf": norms.erf,
    "relax.round": elementwise(np.rint),
    "relax.nn.gelu": norms.gelu,
    "relax.nn.gelu_tanh": norms.gelu_tanh,
    "relax.nn.log_softmax": norms.log_softmax,
    "relax.nn.layer_norm": norms.layer_norm,
    "relax.nn.group_norm": norms.group_norm,
    "relax.nn.instance_norm": norms.instance_norm,
    "relax.strided_slice": norms.strided_slice,
    "relax.take": norms.take,
    "relax.tile": norms.tile,
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
