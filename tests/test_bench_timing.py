"""measure.cuda_timing with a CUDA runtime made of Python: what is called, in which order."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from tvm_winograd.errors import DeviceError, InputError
from tvm_winograd.measure.cuda_timing import Cudart, CudaTimer, Plan, Timing

FAST = Plan(warmup_ms=0.0)


def describe(status):
    return b"operation failed due to a previous error during capture"


class FakeCuda:
    """A GPU that takes 10 us for each call of `work`. Counts handles that are not freed."""

    def __init__(self, fail: str = "") -> None:
        self.log: list[str] = []
        self.clock = 0.0  # us
        self.made = 0
        self.live: set[int] = set()
        self.capturing: list[int] | None = None
        self.graphs: dict[int, int] = {}  # handle -> calls in it
        self.events: dict[int, float] = {}
        self.fail, self.errors_read = fail, 0

    def work(self) -> None:
        self.log.append("work")
        if self.capturing is not None:
            self.capturing.append(1)
        else:
            self.clock += 10.0

    def __getattr__(self, name: str):
        if not name.startswith("cuda"):
            raise AttributeError(name)
        short = name.removeprefix("cuda")

        def function(*arguments):
            self.log.append(short)
            if short == self.fail:
                return 901
            getattr(self, f"do_{short}", lambda *_: None)(*arguments)
            return 0

        return function

    def new(self, reference) -> int:
        self.made += 1
        reference._obj.value = self.made
        self.live.add(self.made)
        return self.made

    def do_StreamCreateWithFlags(self, stream, flags):
        self.new(stream)

    def do_EventCreate(self, event):
        self.new(event)

    def do_Malloc(self, pointer, size):
        assert size.value == 2 * 1000
        self.new(pointer)

    def do_DeviceGetAttribute(self, value, attribute, device):
        assert (attribute, device) == (38, 0)
        value._obj.value = 1000

    def do_MemsetAsync(self, buffer, value, size, stream):
        self.clock += 1000.0

    def do_StreamBeginCapture(self, stream, mode):
        self.capturing = []

    def do_StreamEndCapture(self, stream, graph):
        calls, self.capturing = len(self.capturing), None
        self.graphs[self.new(graph)] = calls

    def do_GraphInstantiate(self, executable, graph, flags):
        self.graphs[self.new(executable)] = self.graphs[graph.value]

    def do_GraphLaunch(self, executable, stream):
        self.clock += 10.0 * self.graphs[executable.value]

    def do_EventRecord(self, event, stream):
        self.events[event.value] = self.clock

    def do_EventElapsedTime(self, elapsed, start, end):
        elapsed._obj.value = (self.events[end.value] - self.events[start.value]) * 1e-3

    def freed(self, handle):
        self.live.remove(handle.value)

    do_StreamDestroy = do_EventDestroy = do_Free = do_GraphDestroy = do_GraphExecDestroy = freed

    def cudaGetLastError(self):
        self.errors_read += 1
        return 901

    cudaGetErrorString = staticmethod(describe)


@contextmanager
def no_stream(handle):
    assert handle
    yield


@pytest.mark.parametrize("mode", ["back_to_back", "graph"])
@pytest.mark.parametrize("l2", ["warm", "cold"])
def test_every_way_counts_the_calls_alone(mode, l2):
    cuda = FakeCuda()
    with CudaTimer(cuda, no_stream) as timer:
        timing = timer.measure(cuda.work, mode, l2, FAST)
    assert timing.us == pytest.approx(10.0)
    assert timing.spread_us == pytest.approx(0.0, abs=1e-3)
    assert timing.calls == (20 if l2 == "warm" else 1)
    assert timing.repeats == FAST.repeats
    assert cuda.log.count("MemsetAsync") == (0 if l2 == "warm" else FAST.repeats)
    assert cuda.log.count("GraphLaunch") == (0 if mode != "graph" else FAST.repeats + 1)
    assert not cuda.live  # all freed


def test_latency_waits_for_every_single_call():
    cuda = FakeCuda()
    with CudaTimer(cuda, no_stream) as timer:
        timing = timer.latency(cuda.work, FAST)
    assert (timing.calls, timing.repeats) == (1, FAST.repeats) and timing.us > 0
    last = cuda.log[-2 * FAST.repeats - 2 : -2]  # then the timer frees its stream
    assert last == ["work", "DeviceSynchronize"] * FAST.repeats


def test_a_call_runs_before_it_is_captured_and_all_is_queued_before_the_wait():
    cuda = FakeCuda()
    with CudaTimer(cuda, no_stream) as timer:
        timer.measure(cuda.work, "graph", "warm", FAST)
    log = cuda.log
    assert log.index("work") < log.index("StreamBeginCapture")
    records = [i for i, name in enumerate(log) if name == "EventRecord"]
    assert "StreamSynchronize" not in log[records[0] : records[-1]]


def test_tvm_launches_on_the_stream_only_while_it_is_timed():
    cuda, entered = FakeCuda(), []

    @contextmanager
    def use(handle):
        entered.append(handle)
        cuda.log.append("enter")
        yield
        cuda.log.append("leave")

    with CudaTimer(cuda, use) as timer:
        timer.measure(cuda.work, plan=FAST)
        assert entered == [timer.handle]
    work = [i for i, name in enumerate(cuda.log) if name == "work"]
    assert cuda.log.index("enter") < work[0] and work[-1] < cuda.log.index("leave")


def test_a_failure_names_call_and_reason_and_is_cleared():
    cuda = FakeCuda(fail="StreamEndCapture")
    with CudaTimer(cuda, no_stream) as timer:
        with pytest.raises(DeviceError, match=r"cudaStreamEndCapture failed: operation .*901"):
            timer.measure(cuda.work, "graph", "warm", FAST)
    assert cuda.errors_read == 1


def test_an_exception_of_the_call_ends_the_capture():
    cuda = FakeCuda()

    def call():
        if cuda.capturing is not None:
            raise RuntimeError("not while it is captured")

    with CudaTimer(cuda, no_stream) as timer:
        with pytest.raises(RuntimeError, match="not while"):
            timer.measure(call, "graph", "warm", FAST)
    assert cuda.capturing is None


def test_slow_calls_get_fewer():
    plan = Plan(calls=20, interval_ms=2.0, repeats=50, total_ms=300.0)
    assert [plan.calls_for(ms) for ms in (0.01, 0.4, 10.0)] == [20, 5, 1]
    assert [plan.repeats_for(ms) for ms in (0.2, 10.0, 100.0)] == [50, 30, 5]


def test_median_and_the_middle_half():
    timing = Timing.of([10.0, 20.0, 30.0, 40.0, 1000.0], calls=10)
    assert timing == Timing(us=3.0, spread_us=2.0, calls=10, repeats=5)


def test_unknown_mode():
    with CudaTimer(FakeCuda(), no_stream) as timer, pytest.raises(InputError, match="fast"):
        timer.measure(lambda: None, "fast")


def test_versions():
    class Library:
        def cudaRuntimeGetVersion(self, number):
            number._obj.value = 13000
            return 0

    assert Cudart(Library()).version("Runtime") == "13.0"


def test_without_a_library(monkeypatch):
    monkeypatch.setattr("tvm_winograd.measure.cuda_timing.load_cudart", lambda: None)
    with pytest.raises(DeviceError, match=r"libcudart.so.13 was not found"):
        CudaTimer()
