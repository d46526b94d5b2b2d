"""torch's convolutions on the same weights: a peer's rounding error, and a fast float64 truth."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import UnsupportedError
from ..shapes import ConvSpec
from .reference import conv2d, from_nchw, to_nchw


def torch_conv(spec: ConvSpec, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """torch's direct float32 convolution on the CPU; for `evaluate(conv=..., dtype="float32")`.

    Args:
        x: input in `spec.layout`.  w: weights (k, c/groups, r, s).
    Returns:
        The output in `spec.layout`, float32.
    Raises:
        UnsupportedError: torch is not installed.
    """
    return _conv(spec, x, w, "cpu", "float32")


def cuda_conv64(spec: ConvSpec, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """The convolution in float64 on the GPU, for references of large batches; as `torch_conv`."""
    # it runs once: trying every algorithm of cuDNN, as timed peers want, would take seconds
    with _torch().backends.cudnn.flags(benchmark=False):
        return _conv(spec, x, w, "cuda", "float64")


def best_conv64() -> Callable[[ConvSpec, np.ndarray, np.ndarray], np.ndarray]:
    """The convolution in float64: by torch on the GPU if it is there, which saves minutes, else by
    numpy; for `evaluate(conv=...)` too."""
    return cuda_conv64 if has_torch_cuda() else conv2d


def has_torch_cuda() -> bool:
    """True if `cuda_conv64` can be used."""
    try:
        return bool(_torch().cuda.is_available())
    except UnsupportedError:
        return False


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise UnsupportedError(
            "comparing with torch needs torch: pip install 'tvm-winograd[torch]'"
        ) from error
    return torch


def _conv(spec: ConvSpec, x: np.ndarray, w: np.ndarray, device: str, dtype: str) -> np.ndarray:
    torch = _torch()

    def tensor(array: np.ndarray) -> Any:
        return torch.from_numpy(np.require(array, dtype, ["C", "W"])).to(device)

    top, left, bottom, right = spec.padding
    data = tensor(to_nchw(np.asarray(x), spec.layout))
    if (top, left) == (bottom, right):
        padding = (top, left)
    else:
        data = torch.nn.functional.pad(data, (left, right, top, bottom))
        padding = (0, 0)
    out = torch.nn.functional.conv2d(
        data,
        tensor(w),
        stride=spec.stride,
        padding=padding,
        dilation=spec.dilation,
        groups=spec.groups,
    )
    return from_nchw(out.cpu().numpy(), spec.layout)
