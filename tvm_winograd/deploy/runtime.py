"""Runs artifacts with TVM's runtime and numpy only: no compiler is loaded.

runner = tvm_winograd.load("resnet18.artifact")
logits = runner.run(x)
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ArtifactError, InputError
from . import cpu, gate
from .arguments import check_inputs, numpy_dtype, stream_handle
from .batch_runner import BatchRunner
from .batches import Batches
from .loading import (
    CPU,
    CUDA,
    check_versions,
    choose_modules,
    hint,
    library_name,
    load_cuda,
    load_params,
    load_runtime,
    parse_device,
)
from .manifest import batches_of, check_files, read_labels, read_manifest, with_batch
from .memory import Memory, runtime

_POOLED = 2  # TVM's allocator that keeps freed memory for the next run


def load(path: str | Path, device: str | None = None) -> Runner | BatchRunner[Runner]:
    """Loads an artifact on `device` ("cpu", "cuda", "cuda:1"; by default the target's first).

    A module with a CUDA graph runs once, on zeros, to be captured. CUDA refuses that while other
    threads allocate on the GPU or use its default stream; models of ours wait for each other.

    Returns:
        A BatchRunner where the artifact was compiled for a range of batches.
    Raises:
        ArtifactError: the artifact is damaged or does not fit this machine.
    """
    path = Path(path)
    manifest = read_manifest(path)
    kind, index = parse_device(device, manifest["target"])
    check_versions(manifest)
    check_files(path, manifest)
    load_runtime()
    modules = manifest["modules"]
    modules = choose_modules(modules, *load_cuda(index)) if kind == CUDA else cpu.choose(modules)
    labels = read_labels(path, manifest)
    memory = _memory(kind, index)
    with gate.GPU.alone() if kind == CUDA else nullcontext():
        indexes = [(path / m["params"]["file"], len(m["params"]["names"])) for m in modules]
        params = load_params(path / manifest["params"]["file"], indexes, memory)
        runners = [
            Runner(path, manifest, module, memory, of_module, labels)
            for module, of_module in zip(modules, params, strict=True)
        ]
    batches = batches_of(manifest)
    return BatchRunner(batches, runners) if batches else runners[0]


def _memory(kind: int, index: int) -> Memory:
    import tvm_ffi

    return Memory(tvm_ffi.device("cuda" if kind == CUDA else "cpu", index))


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
        memory: Memory,
        params: Sequence[Any],
        labels: list[str] | None,
    ) -> None:
        """Use `load`."""
        import tvm_ffi

        self.manifest = manifest
        self.module = module
        self.device = memory.device
        self.labels = labels
        self._memory = memory
        self._inputs = with_batch(manifest["inputs"], module["batch"])
        self._padded: list[Any] = []  # the inputs of a run that does not fill the bucket
        self._stream: int | None = None  # of the last run
        self._lock = threading.RLock()  # TVM's virtual machine has one stack
        file = path / module["file"]
        place = (memory.device.dlpack_device_type(), memory.device.index)
        try:
            self._library = tvm_ffi.load_module(library_name(file))
            self._vm = self._library["vm_load_executable"]()
            self._vm["vm_initialization"](*place, _POOLED, CPU, 0, _POOLED)
            self._main = self._vm["main"]
        except (RuntimeError, AttributeError) as error:
            raise ArtifactError(f"{file} cannot be loaded: {error}; {hint(error)}") from error
        self._params = params  # the graph holds their addresses: they are those of every run
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
            tensors = [self._memory.upload(a) if isinstance(a, np.ndarray) else a for a in args]
            out = self._poisoned(shape, dtype)
            function(*tensors, out, *(self._poisoned(**w) for w in entry["workspaces"]))
            self._memory.wait(handle)
            return self._memory.download(out)

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
                return self._call(checked, handle)
            out = self._call([self._memory.upload(x) for x in checked], handle)
            self._memory.wait(handle)
            return _map(self._memory.download, out)

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
            tensors = [self._memory.upload(x) for x in checked] if on_host else checked
            for i in range(warmup + repeats):
                self._memory.wait(handle)
                start = time.perf_counter()
                self._call(tensors, handle)
                self._memory.wait(handle)
                if i >= warmup:
                    seconds.append(time.perf_counter() - start)
        return seconds

    def _capture(self) -> None:
        import tvm_ffi

        try:
            zeros = [np.zeros(t["shape"], numpy_dtype(t["dtype"])) for t in self._inputs]
            with tvm_ffi.use_raw_stream(self.device, 0):
                self._call([self._memory.upload(x) for x in zeros], 0)
                self._memory.wait(0)
        except RuntimeError as error:
            raise ArtifactError(
                f"the CUDA graph cannot be captured: {error}; load the model while no other thread "
                "uses the GPU, or compile it with --no-cuda-graph"
            ) from error

    def _poisoned(self, shape: Sequence[int], dtype: str) -> Any:
        """A tensor whose elements show if they are read before they are written, or never are."""
        return self._memory.upload(np.full(tuple(shape), np.nan).astype(numpy_dtype(dtype)))

    def _call(self, tensors: Sequence[Any], stream: int) -> Any:
        """The outputs for device tensors; of a bucket they may hold fewer images than it has."""
        rows = None
        if self.module["batch"] not in (None, tensors[0].shape[0]):
            rows = int(tensors[0].shape[0])
            tensors = self._pad(tensors, rows, stream)
        out = self._main(*tensors, self._params)
        out = out if hasattr(out, "__dlpack__") else tuple(out)
        return out if rows is None else _map(lambda t: self._memory.rows(t, rows), out)

    def _pad(self, tensors: Sequence[Any], rows: int, stream: int) -> Sequence[Any]:
        """Copies the images to the front of tensors of the bucket's size. Behind them zeros or
        images of an earlier run lie: no image sees another, and their outputs are cut off."""
        if not self._padded:
            zeros = [np.zeros(t["shape"], numpy_dtype(t["dtype"])) for t in self._inputs]
            self._padded = [self._memory.upload(array) for array in zeros]
        for tensor, padded in zip(tensors, self._padded, strict=True):
            self._memory.copy(tensor, self._memory.rows(padded, rows), stream)
        return self._padded

    def _check(self, inputs: Sequence[Any]) -> tuple[bool, list[Any]]:
        """Whether the inputs are numpy's, and what to upload or to run on."""
        wanted, batch = self._inputs, self.module["batch"]
        if batch is not None and inputs and getattr(inputs[0], "shape", None):
            rows = int(inputs[0].shape[0])
            Batches(1, (batch,)).bucket(rows)
            wanted = with_batch(wanted, rows)
        return check_inputs(inputs, wanted, self.device, fixed_batch=batch is None)

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
            runtime("Device_StreamSyncFromTo")(self.device, self._stream, handle)
        self._stream = handle
        with gate.GPU.together(), tvm_ffi.use_raw_stream(self.device, handle):
            yield


def _map(function: Any, out: Any) -> Any:
    return tuple(_map(function, t) for t in out) if isinstance(out, tuple) else function(out)
