"""Tensors on a device, through TVM's runtime, which must be loaded (`loading.load_runtime`)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .arguments import numpy_dtype


@dataclass(frozen=True)
class Memory:
    """Makes and copies tensors (tvm_ffi.Tensor) on one device."""

    device: Any  # tvm_ffi.Device

    def empty(self, shape: Sequence[int], dtype: str) -> Any:
        """A tensor whose elements are not set."""
        import tvm_ffi

        allocate = runtime("TVMTensorAllocWithScope")
        return allocate(tvm_ffi.Shape(tuple(shape)), tvm_ffi.dtype(dtype), self.device, None)

    def upload(self, array: np.ndarray) -> Any:
        """A copy on the device; on the CPU too, since numpy aligns to 16 bytes only."""
        array = np.ascontiguousarray(array).reshape(array.shape)  # which makes scalars 1-d
        tensor = self.empty(array.shape, str(array.dtype))
        data = array.ctypes.data_as(ctypes.c_void_p)
        runtime("TVMTensorCopyFromBytes")(tensor, data, array.nbytes)
        return tensor

    def download(self, tensor: Any) -> np.ndarray:
        """A copy in numpy of a tensor that no kernel writes any more."""
        array = np.empty(tuple(tensor.shape), numpy_dtype(str(tensor.dtype)))
        data = array.ctypes.data_as(ctypes.c_void_p)
        runtime("TVMTensorCopyToBytes")(tensor, data, array.nbytes)
        return array

    def rows(self, tensor: Any, count: int) -> Any:
        """The first `count` elements of axis 0, in the same memory."""
        import tvm_ffi

        shape = tvm_ffi.Shape((count, *tuple(tensor.shape)[1:]))
        return runtime("TVMTensorCreateView")(tensor, shape, tensor.dtype, 0)

    def copy(self, source: Any, target: Any, stream: int) -> None:
        """Copies between tensors of one shape, after the work queued on `stream` and before what
        comes next on it. TVM copies on the default stream: the two wait for each other."""
        if stream:
            runtime("Device_StreamSyncFromTo")(self.device, stream, 0)
        runtime("TVMTensorCopyFromTo")(source, target)
        if stream:
            runtime("Device_StreamSyncFromTo")(self.device, 0, stream)

    def wait(self, stream: int) -> None:
        """Until everything queued on `stream` is done."""
        runtime("Device_StreamSync")(self.device, stream)


def runtime(name: str) -> Any:
    """A function of TVM's runtime."""
    import tvm_ffi

    return tvm_ffi.get_global_func(f"runtime.{name}")
