"""What callers of a model hand in: checked, and named in the error if it does not fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .errors import InputError


def check_tensor(value: Any, wanted: Mapping[str, Any]) -> None:
    """Raises:
    InputError: another shape or dtype than `wanted`, an entry of a manifest's inputs.
    """
    name, shape, dtype = wanted["name"], tuple(wanted["shape"]), wanted["dtype"]
    if tuple(value.shape) != shape:
        hint = ""
        if len(value.shape) == len(shape) and tuple(value.shape)[1:] == shape[1:]:
            hint = f"; the batch size is fixed, compile with --batch {value.shape[0]}"
        raise InputError(
            f"input {name} has shape {tuple(value.shape)}, the model takes {shape}{hint}"
        )
    if str(value.dtype) != dtype:
        raise InputError(
            f"input {name} has dtype {value.dtype}, the model takes {dtype}: convert it first, "
            f'e.g. x.astype("{dtype}")'
        )


def numpy_dtype(name: str) -> Any:
    """numpy's dtype of a name in a manifest."""
    if name == "bfloat16":
        import ml_dtypes  # comes with TVM

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


def stream_handle(stream: Any) -> int:
    """The integer handle of a CUDA stream; 0, the default stream, for None.

    Raises:
        InputError: `stream` is no handle and has none.
    """
    handle = getattr(stream, "cuda_stream", stream)
    if handle is None:
        return 0
    if isinstance(handle, bool) or not isinstance(handle, int):
        raise InputError(
            f"stream is a {type(stream).__name__}: an integer handle or an object with "
            ".cuda_stream (torch.cuda.Stream) is needed"
        )
    return handle
