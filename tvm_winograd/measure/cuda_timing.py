"""Timing of calls that launch work on a CUDA stream, with the CUDA runtime library alone.

Two ways to launch: back to back (what a host program sees, its launch overhead included where
that is the slower part) and as one CUDA graph (the GPU's own time). Two states of the L2 cache:
warm (the calls before left their data) and cold (a larger buffer was written in between).

All intervals are queued before the first is waited for: between a record and a launch that the
host has yet to make, an idle GPU would count the host's microseconds.
"""

from __future__ import annotations

import ctypes
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol

from ..deploy.libraries import CUDART, load_cudart
from ..errors import DeviceError, InputError

MODES = ("back_to_back", "graph")
L2_STATES = ("warm", "cold")

_NON_BLOCKING = 1  # cudaStreamNonBlocking: no order with the legacy default stream
_RELAXED = 2  # cudaStreamCaptureModeRelaxed: a library may allocate memory while it is captured
_L2_BYTES = 38  # cudaDevAttrL2CacheSize
_FLUSH = 2  # buffer written to empty the L2 cache, in L2 sizes

Call = Callable[[], Any]


@dataclass(frozen=True)
class Plan:
    """How long to measure. A slow call gets fewer calls and repeats, never fewer than five."""

    warmup_ms: float = 60.0  # an idle GPU has to raise its clock first
    calls: int = 20  # at most, in one timed interval
    interval_ms: float = 2.0  # no more calls than fill this
    repeats: int = 50  # at most, timed intervals
    total_ms: float = 300.0  # no more repeats than fill this

    def calls_for(self, call_ms: float) -> int:
        return max(1, min(self.calls, math.ceil(self.interval_ms / call_ms)))

    def repeats_for(self, interval_ms: float) -> int:
        return max(5, min(self.repeats, math.ceil(self.total_ms / interval_ms)))


@dataclass(frozen=True)
class Timing:
    """Microseconds per call: the median of `repeats` intervals of `calls` calls each."""

    us: float
    spread_us: float  # width of the middle half of the intervals
    calls: int
    repeats: int

    @classmethod
    def of(cls, interval_us: Sequence[float], calls: int) -> Timing:
        """Makes it from at least two intervals' times."""
        each = [us / calls for us in interval_us]
        low, _, high = statistics.quantiles(each, n=4, method="inclusive")
        return cls(statistics.median(each), high - low, calls, len(each))


class Timer(Protocol):
    """What times calls: a `CudaTimer`, or a `cpu_timing.CpuTimer`."""

    @property
    def handle(self) -> int:
        """The stream that other libraries have to launch on."""

    def current(self) -> AbstractContextManager[Any]:
        """While it is entered, TVM launches where calls are timed."""

    def synchronize(self) -> None:
        """Waits for everything that was launched."""

    def measure(self, call: Call, mode: str, l2: str, plan: Plan | None) -> Timing:
        """Times `call`, which launches the same work each time and waits for nothing."""


class CudaTimer:
    """Owns a stream of the first GPU; a context manager that frees it.

    TVM's kernels go to the stream by themselves while they are timed; other libraries have to be
    given `handle`.
    """

    def __init__(
        self,
        library: Any = None,
        use_stream: Callable[[int], AbstractContextManager[Any]] | None = None,
    ) -> None:
        """
        Args:
            library: the CUDA runtime's functions; found on this machine if not given.
            use_stream: makes a stream, given by its handle, TVM's current one for a while.
        Raises:
            DeviceError: no CUDA runtime library or no GPU here.
        """
        self._cuda = Cudart(library)
        self._use_stream = use_stream or _tvm_stream
        self._flush: tuple[ctypes.c_void_p, int] | None = None
        self._cuda("SetDevice", 0)
        stream = ctypes.c_void_p()
        self._cuda("StreamCreateWithFlags", ctypes.byref(stream), _NON_BLOCKING)
        self._stream = stream

    @property
    def handle(self) -> int:
        """The cudaStream_t."""
        return self._stream.value or 0

    def __enter__(self) -> CudaTimer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None and issubclass(kind, DeviceError):
            return  # the context may be lost, and every further call fails
        self.synchronize()
        if self._flush is not None:
            self._cuda("Free", self._flush[0])
            self._flush = None
        self._cuda("StreamDestroy", self._stream)

    def current(self) -> AbstractContextManager[Any]:
        """While it is entered, TVM launches on this stream."""
        return self._use_stream(self.handle)

    def synchronize(self) -> None:
        """Waits for everything on the GPU, other streams included."""
        self._cuda("DeviceSynchronize")

    def measure(
        self, call: Call, mode: str = "graph", l2: str = "warm", plan: Plan | None = None
    ) -> Timing:
        """Times `call`, which launches the same work each time and waits for nothing.

        Args:
            mode: of MODES. In a graph, `call` is captured after it ran: its workspaces are there.
            l2: of L2_STATES. If cold, each call is timed alone, and the write in between is not.
        Raises:
            DeviceError: a launch failed, or the call cannot be captured.
            InputError: another mode or state.
        """
        if mode not in MODES or l2 not in L2_STATES:
            raise InputError(f"{mode}, {l2}: modes are {MODES}, states of the L2 are {L2_STATES}")
        plan, cold = plan or Plan(), l2 == "cold"
        self.synchronize()  # the arrays may have been written on other streams
        with self.current():
            call_ms = self._warm_up(call, plan.warmup_ms)
            calls = 1 if cold else plan.calls_for(call_ms)
            with self._submission(call, calls, mode) as submit:
                submit()  # the first launch of a graph uploads it
                times = self._intervals(submit, plan.repeats_for(calls * call_ms), cold)
        return Timing.of(times, calls)

    def latency(self, call: Call, plan: Plan | None = None) -> Timing:
        """Times single calls as the host sees them, from an idle GPU to an idle GPU.

        Raises:
            DeviceError: a launch failed.
        """
        plan, times = plan or Plan(), []
        self.synchronize()
        with self.current():
            for _ in range(plan.repeats_for(self._warm_up(call, plan.warmup_ms))):
                start = time.perf_counter()
                call()
                self.synchronize()
                times.append((time.perf_counter() - start) * 1e6)
        return Timing.of(times, 1)

    def _warm_up(self, call: Call, least_ms: float) -> float:
        """Warms up: milliseconds per call, as the host sees them, in the last and longest round."""
        call()
        self._cuda("StreamSynchronize", self._stream)
        begin, count = time.perf_counter(), 1
        while True:
            start = time.perf_counter()
            for _ in range(count):
                call()
            self._cuda("StreamSynchronize", self._stream)
            end = time.perf_counter()
            if (end - begin) * 1e3 >= least_ms:
                return (end - start) * 1e3 / count
            count = min(2 * count, 64)

    @contextmanager
    def _submission(self, call: Call, calls: int, mode: str) -> Iterator[Call]:
        """Yields a function that launches `calls` calls."""
        if mode == "back_to_back":
            yield lambda: [call() for _ in range(calls)]
            return
        with ExitStack() as made:
            graph = self._capture(call, calls)
            made.callback(self._cuda, "GraphDestroy", graph)
            executable = ctypes.c_void_p()
            self._cuda("GraphInstantiate", ctypes.byref(executable), graph, ctypes.c_ulonglong(0))
            made.callback(self._cuda, "GraphExecDestroy", executable)
            yield lambda: self._cuda("GraphLaunch", executable, self._stream)

    def _capture(self, call: Call, calls: int) -> ctypes.c_void_p:
        graph = ctypes.c_void_p()
        self._cuda("StreamBeginCapture", self._stream, _RELAXED)
        try:
            for _ in range(calls):
                call()
        except BaseException:
            self._cuda.quiet("StreamEndCapture", self._stream, ctypes.byref(graph))
            raise
        self._cuda("StreamEndCapture", self._stream, ctypes.byref(graph))
        return graph

    def _intervals(self, submit: Call, repeats: int, cold: bool) -> list[float]:
        """Times intervals, each in microseconds."""
        with ExitStack() as made:
            pairs = [(self._event(made), self._event(made)) for _ in range(repeats)]
            for start, end in pairs:
                if cold:
                    self._empty_l2()
                self._cuda("EventRecord", start, self._stream)
                submit()
                self._cuda("EventRecord", end, self._stream)
            self._cuda("StreamSynchronize", self._stream)
            return [self._elapsed_us(start, end) for start, end in pairs]

    def _event(self, made: ExitStack) -> ctypes.c_void_p:
        event = ctypes.c_void_p()
        self._cuda("EventCreate", ctypes.byref(event))
        made.callback(self._cuda, "EventDestroy", event)
        return event

    def _elapsed_us(self, start: ctypes.c_void_p, end: ctypes.c_void_p) -> float:
        elapsed = ctypes.c_float()
        self._cuda("EventElapsedTime", ctypes.byref(elapsed), start, end)
        return elapsed.value * 1e3

    def _empty_l2(self) -> None:
        if self._flush is None:
            size, buffer = ctypes.c_int(), ctypes.c_void_p()
            self._cuda("DeviceGetAttribute", ctypes.byref(size), _L2_BYTES, 0)
            self._cuda("Malloc", ctypes.byref(buffer), ctypes.c_size_t(_FLUSH * size.value))
            self._flush = buffer, _FLUSH * size.value
        buffer, count = self._flush
        self._cuda("MemsetAsync", buffer, 0, ctypes.c_size_t(count), self._stream)


class Cudart:
    """The CUDA runtime's functions by their names without "cuda"; failures raise."""

    def __init__(self, library: Any = None) -> None:
        self._library: Any = library if library is not None else load_cudart()
        if self._library is None:
            raise DeviceError(
                f"the CUDA runtime {CUDART} was not found: timing needs an NVIDIA GPU and "
                "pip install 'tvm-winograd[cuda]' or a CUDA 13 toolkit"
            )

    def __call__(self, name: str, *arguments: Any) -> None:
        """Raises:
        DeviceError: the call failed; names it and CUDA's reason.
        """
        if status := self.quiet(name, *arguments):
            raise DeviceError(f"cuda{name} failed: {self._reason(status)} (error {status})")

    def quiet(self, name: str, *arguments: Any) -> int:
        """Calls; returns the status. CUDA's note of it is cleared: no later call reports it."""
        status = int(getattr(self._library, f"cuda{name}")(*arguments))
        if status:
            self._library.cudaGetLastError()
        return status

    def version(self, name: str) -> str:
        """ "13.0" of "Runtime", or of what "Driver" supports at most."""
        number = ctypes.c_int()
        self(f"{name}GetVersion", ctypes.byref(number))
        return f"{number.value // 1000}.{number.value % 1000 // 10}"

    def _reason(self, status: int) -> str:
        describe = self._library.cudaGetErrorString
        describe.restype = ctypes.c_char_p
        text: bytes = describe(status)
        return text.decode()


def _tvm_stream(handle: int) -> AbstractContextManager[Any]:
    import tvm_ffi

    context: AbstractContextManager[Any] = tvm_ffi.use_raw_stream(tvm_ffi.device("cuda", 0), handle)
    return context
