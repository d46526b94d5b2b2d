"""Other people's convolutions on the same weights, to compare our rounding errors with."""

from __future__ import annotations

import numpy as np

from .errors import UnsupportedError
from .reference import from_nchw, to_nchw
from .shapes import ConvSpec


def torch_conv(spec: ConvSpec, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """torch's direct float32 convolution on the CPU; for `evaluate(conv=..., dtype="float32")`.

    Args:
        x: input in `spec.layout`.  w: weights (k, c/groups, r, s).
    Returns:
        The output in `spec.layout`, float32.
    """
    try:
        import torch
    except ImportError as error:
        raise UnsupportedError(
            "comparing with torch needs torch: pip install 'tvm-winograd[torch]'"
        ) from error
    top, left, bottom, right = spec.padding
    data = _tensor(to_nchw(np.asarray(x), spec.layout))
    if (top, left) == (bottom, right):
        padding = (top, left)
    else:
        data = torch.nn.functional.pad(data, (left, right, top, bottom))
        padding = (0, 0)
    out = torch.nn.functional.conv2d(
        data,
        _tensor(w),
        stride=spec.stride,
        padding=padding,
        dilation=spec.dilation,
        groups=spec.groups,
    )
    return from_nchw(out.numpy(), spec.layout)


def _tensor(array: np.ndarray) -> object:
    """A float32 tensor; a copy where the array is not contiguous, writable float32."""
    import torch

    return torch.from_numpy(np.require(array, "float32", ["C", "W"]))
