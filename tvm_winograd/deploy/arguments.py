"""What callers of a model hand in: checked, and named in the error if it does not fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import InputError

ALIGN = 64  # bytes: TVM's kernels assume it of every tensor


def check_inputs(
    inputs: Sequence[Any], wanted: Sequence[Mapping[str, Any]], device: Any, *, fixed_batch: bool
) -> tuple[bool, list[Any]]:
    """Whether the inputs are numpy's, and what to upload (numpy) or to run on (TVM's tensors).

    Args:
        wanted: a manifest's inputs.  device: the model's tvm_ffi.Device.
        fixed_batch: whether the model takes one batch only.
    Raises:
        InputError: an input of the wrong number, kind, shape, dtype, device or strides.
    """
    if len(inputs) != len(wanted):
        names = ", ".join(t["name"] for t in wanted)
        raise InputError(f"{len(inputs)} inputs given, the model takes {len(wanted)}: {names}")
    on_host = {isinstance(x, np.ndarray) for x in inputs}
    if len(on_host) > 1:
        raise InputError("numpy arrays and DLPack tensors are mixed: give all of one kind")
    checked = [
        value if isinstance(value, np.ndarray) else _shared(value, tensor["name"])
        for value, tensor in zip(inputs, wanted, strict=True)
    ]
    for value, tensor in zip(checked, wanted, strict=True):
        check_tensor(value, tensor, fixed_batch=fixed_batch)
        if not isinstance(value, np.ndarray):
            _check_place(value, tensor["name"], device)
    return on_host != {False}, checked


def _shared(value: Any, name: str) -> Any:
    """The caller's tensor as TVM's, without a copy."""
    import tvm_ffi

    if not hasattr(value, "__dlpack__"):
        raise InputError(
            f"input {name} is a {type(value).__name__}: a numpy array or a tensor with "
            "__dlpack__ (torch, cupy, tvm_ffi) is needed"
        )
    try:
        return value if isinstance(value, tvm_ffi.Tensor) else tvm_ffi.from_dlpack(value)
    except (BufferError, RuntimeError) as error:
        raise InputError(f"input {name} cannot be shared through DLPack: {error}") from error


def _check_place(tensor: Any, name: str, device: Any) -> None:
    if tensor.device != device:
        raise InputError(
            f"input {name} is on {tensor.device}, the model on {device}: move it there"
        )
    if not tensor.is_contiguous():
        raise InputError(f"input {name} is not contiguous: pass x.contiguous()")
    if tensor.data_ptr() % ALIGN:
        raise InputError(f"input {name} is not aligned to {ALIGN} bytes: pass x.clone()")


def check_tensor(value: Any, wanted: Mapping[str, Any], *, fixed_batch: bool = True) -> None:
    """Raises:
    InputError: another shape or dtype than `wanted`, an entry of a manifest's inputs.
    """
    name, shape, dtype = wanted["name"], tuple(wanted["shape"]), wanted["dtype"]
    if tuple(value.shape) != shape:
        hint = ""
        if fixed_batch and len(value.shape) == len(shape) and tuple(value.shape)[1:] == shape[1:]:
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
