"""Runs artifacts with TVM's runtime and numpy only: no compiler is loaded.

runner = tvm_winograd.load("resnet18.artifact")
logits = runner.run(x)
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from . import gate
from .arguments import check_tensor, numpy_dtype, stream_handle
from .errors import ArtifactError, InputError
from .loading import (
    CPU,
    CUDA,
    check_versions,
    choose_module,
    load_cuda,
    load_params,
    load_runtime,
    parse_device,
)
from .manifest import check_files, read_labels, read_manifest

_POOLED = 2  # TVM's allocator that keeps freed memory for the next run
_ALIGN = 64  # bytes: TVM's kernels assume it of every tensor


def load(path: str | Path, device: str | None = None) -> Runner:
    """Loads an artifact on `device` ("cpu", "cuda", "cuda:1"; by default the target's first).

    A module with a CUDA graph runs once, on zeros, to be captured. CUDA refuses that while other
    threads allocate on the GPU or use its default stream; models of ours wait for each other.

    Raises:
        ArtifactError: the artifact is damaged or does not fit this machine.
    """
    path = Path(path)
    manifest = read_manifest(path)
    kind, index = parse_device(device, manifest["target"])
    check_versions(manifest)
    check_files(path, manifest)
    load_runtime()
    if kind == CUDA:
        module = choose_module(manifest["modules"], *load_cuda(index))
    else:
        module = manifest["modules"][0]
    with gate.GPU.alone() if kind == CUDA else nullcontext():
        return Runner(path, manifest, module, (kind, index))


class Runner:
    """A loaded model, made by `load`. One call at a time, those of other threads wait.

    Attributes:
        manifest: the artifact's.
        module: the entry of the manifest that was loaded.
        device: a tvm_ffi.Device.
        labels: class names, if the artifact has them.
    """

    def __init__(
        self,
        path: Path,
        manifest: dict[str, Any],
        module: Mapping[str, Any],
        device: tuple[int, int],
    ) -> None:
        """Use `load`."""
        import tvm_ffi

        self.manifest = manifest
        self.module = module
        self.device = tvm_ffi.device("cuda" if device[0] == CUDA else "cpu", device[1])
        self._stream: int | None = None  # of the last run
        self._lock = threading.RLock()  # TVM's virtual machine has one stack
        self.labels = read_labels(path, manifest)
        file = path / module["file"]
        try:
            self._library = tvm_ffi.load_module(str(file))
            self._vm = self._library["vm_load_executable"]()
            self._vm["vm_initialization"](*device, _POOLED, CPU, 0, _POOLED)
            self._main = self._vm["main"]
        except (RuntimeError, AttributeError) as error:
            raise ArtifactError(
                f"{file} cannot be loaded: {error}; compile the model again"
            ) from error
        # the graph holds their addresses: they are the parameters of every run
        self._params = load_params(file.parent, len(module["params"]["names"]), device)
        if module["cuda_graph"]:
            self._capture()

    @property
    def params(self) -> dict[str, Any]:
        """The module's parameters on the device, by name: transformed weights and biases."""
        return dict(zip(self.module["params"]["names"], self._params, strict=True))

    def call_function(
        self, name: str, args: Sequence[Any], shape: Sequence[int], dtype: str
    ) -> np.ndarray:
        """One kernel of the module, called alone (`verify` does).

        Args:
            name: a function of the manifest.
            args: its arguments but for the output: numpy arrays or tensors of `params`.
            shape, dtype: of the output.
        """
        function = self._library.get_function(name, query_imports=True)
        entry = next(f for f in self.module["functions"] if f["name"] == name)
        with self._on(None) as handle:
            tensors = [self._upload(a) if isinstance(a, np.ndarray) else a for a in args]
            out = self._poisoned(shape, dtype)
            function(*tensors, out, *(self._poisoned(**w) for w in entry["workspaces"]))
            self._wait(handle)
            return self._download(out)

    def run(self, *inputs: Any, stream: Any = None) -> Any:
        """Runs the model once.

        Args:
            inputs: numpy arrays, or DLPack tensors (torch, cupy, tvm_ffi) on the model's device.
            stream: of CUDA, an integer handle or an object with `.cuda_stream`; the default
                stream if None.

        Returns:
            For numpy arrays a numpy array, or a tuple of them. For DLPack inputs, which are not
            copied, tvm_ffi tensors on the device; the work is queued on the stream, not finished.

        Raises:
            InputError: an input of the wrong number, kind, shape, dtype, device or strides.
        """
        on_host, checked = self._check(inputs)
        with self._on(stream) as handle:
            if not on_host:
                return self._call(checked)
            out = self._call([self._upload(x) for x in checked])
            self._wait(handle)
            return _map(self._download, out)

    def time(
        self, *inputs: Any, repeats: int = 10, warmup: int = 3, stream: Any = None
    ) -> list[float]:
        """Seconds of each of `repeats` runs, the device idle before and after each.

        Numpy inputs are copied to the device once, before: no transfer is timed.
        """
        if repeats < 1:
            raise InputError(f"repeats={repeats}: at least 1 is needed")
        on_host, checked = self._check(inputs)
        seconds = []
        with self._on(stream) as handle:
            tensors = [self._upload(x) for x in checked] if on_host else checked
            for i in range(warmup + repeats):
                self._wait(handle)
                start = time.perf_counter()
                self._call(tensors)
                self._wait(handle)
                if i >= warmup:
                    seconds.append(time.perf_counter() - start)
        return seconds

    def _capture(self) -> None:
        import tvm_ffi

        try:
            zeros = [np.zeros(t["shape"], numpy_dtype(t["dtype"])) for t in self.manifest["inputs"]]
            with tvm_ffi.use_raw_stream(self.device, 0):
                self._call([self._upload(x) for x in zeros])
                self._wait(0)
        except RuntimeError as error:
            raise ArtifactError(
                f"the CUDA graph cannot be captured: {error}; load the model while no other thread "
                "uses the GPU, or compile it with --no-cuda-graph"
            ) from error

    def _poisoned(self, shape: Sequence[int], dtype: str) -> Any:
        """A tensor whose elements show if they are read before they are written, or never are."""
        return self._upload(np.full(tuple(shape), np.nan).astype(numpy_dtype(dtype)))

    def _call(self, tensors: Sequence[Any]) -> Any:
        out = self._main(*tensors, self._params)
        return out if hasattr(out, "__dlpack__") else tuple(out)

    def _check(self, inputs: Sequence[Any]) -> tuple[bool, list[Any]]:
        """Whether the inputs are numpy's, and what to upload or to run on."""
        wanted = self.manifest["inputs"]
        if len(inputs) != len(wanted):
            names = ", ".join(t["name"] for t in wanted)
            raise InputError(f"{len(inputs)} inputs given, the model takes {len(wanted)}: {names}")
        on_host = {isinstance(x, np.ndarray) for x in inputs}
        if len(on_host) > 1:
            raise InputError("numpy arrays and DLPack tensors are mixed: give all of one kind")
        checked = []
        for value, tensor in zip(inputs, wanted, strict=True):
            if isinstance(value, np.ndarray):
                check_tensor(value, tensor)
                checked.append(value)
            else:
                checked.append(self._borrow(value, tensor))
        return on_host != {False}, checked

    def _borrow(self, value: Any, wanted: Mapping[str, Any]) -> Any:
        """The caller's tensor as TVM's, without a copy."""
        import tvm_ffi

        name = wanted["name"]
        if not hasattr(value, "__dlpack__"):
            raise InputError(
                f"input {name} is a {type(value).__name__}: a numpy array or a tensor with "
                "__dlpack__ (torch, cupy, tvm_ffi) is needed"
            )
        try:
            tensor = value if isinstance(value, tvm_ffi.Tensor) else tvm_ffi.from_dlpack(value)
        except (BufferError, RuntimeError) as error:
            raise InputError(f"input {name} cannot be shared through DLPack: {error}") from error
        check_tensor(tensor, wanted)
        if tensor.device != self.device:
            raise InputError(
                f"input {name} is on {tensor.device}, the model on {self.device}: move it there"
            )
        if not tensor.is_contiguous():
            raise InputError(f"input {name} is not contiguous: pass x.contiguous()")
        if tensor.data_ptr() % _ALIGN:
            raise InputError(f"input {name} is not aligned to {_ALIGN} bytes: pass x.clone()")
        return tensor

    def _upload(self, array: np.ndarray) -> Any:
        """A copy on the device; on the CPU too, since numpy aligns to 16 bytes only."""
        import tvm_ffi

        array = np.ascontiguousarray(array).reshape(array.shape)  # which makes scalars 1-d
        shape, dtype = tvm_ffi.Shape(array.shape), tvm_ffi.dtype(str(array.dtype))
        tensor = _runtime("TVMTensorAllocWithScope")(shape, dtype, self.device, None)
        data = array.ctypes.data_as(ctypes.c_void_p)
        _runtime("TVMTensorCopyFromBytes")(tensor, data, array.nbytes)
        return tensor

    def _download(self, tensor: Any) -> np.ndarray:
        array = np.empty(tuple(tensor.shape), numpy_dtype(str(tensor.dtype)))
        data = array.ctypes.data_as(ctypes.c_void_p)
        _runtime("TVMTensorCopyToBytes")(tensor, data, array.nbytes)
        return array

    def _wait(self, stream: int) -> None:
        _runtime("Device_StreamSync")(self.device, stream)

    @contextmanager
    def _on(self, stream: Any) -> Iterator[int]:
        """Makes TVM use `stream`; gives its handle. One thread at a time."""
        handle = stream_handle(stream)
        if self.device.type != "cuda":
            if handle:
                raise InputError("stream is for CUDA; this model runs on the CPU")
            with self._lock:
                yield 0
            return
        with self._lock, self._on_cuda(handle):
            yield handle

    @contextmanager
    def _on_cuda(self, handle: int) -> Iterator[None]:
        import tvm_ffi

        if self._stream not in (None, handle):
            # both use the model's workspace: the new stream waits on the GPU, the host does not
            _runtime("Device_StreamSyncFromTo")(self.device, self._stream, handle)
        self._stream = handle
        with gate.GPU.together(), tvm_ffi.use_raw_stream(self.device, handle):
            yield


def _runtime(name: str) -> Any:
    import tvm_ffi

    return tvm_ffi.get_global_func(f"runtime.{name}")


def _map(function: Any, out: Any) -> Any:
    return tuple(_map(function, t) for t in out) if isinstance(out, tuple) else function(out)
