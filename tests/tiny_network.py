"""A small network and fake providers for the tests of `bench model`."""

from __future__ import annotations

import functools
from contextlib import nullcontext

import numpy as np

from tvm_winograd.bench.network.network import Subject
from tvm_winograd.bench.network.provider import Bench, Prepared
from tvm_winograd.errors import DeviceError, UnsupportedError
from tvm_winograd.frontend import Model
from tvm_winograd.frontend.builtin import builtin_model
from tvm_winograd.frontend.resnet import ResNetConfig
from tvm_winograd.gpu import host_cpu
from tvm_winograd.measure.conditions import Conditions
from tvm_winograd.measure.cuda_timing import Timing

TINY = ResNetConfig("basic", (1,), 10, 1, image_size=8, widths=(16,), small_stem=True)
SUBJECT = Subject("tiny", 2)
CONDITIONS = Conditions(
    gpu="NVIDIA H200",
    arch="sm_90",
    driver="580",
    tvm="0.27",
    version="0.1",
    commit="abc",
    date="2026-11-30",
    cuda="13.0",
    cudnn="9.19.0",
    torch="2.11",
    method="m",
)


@functools.cache
def tiny() -> Model:
    return builtin_model(TINY, "tiny", batch=2)


class FakeTimer:
    handle = 0  # of the CPU

    def __init__(self, lost: bool = False) -> None:
        self.lost = lost

    def current(self):
        return nullcontext()

    def synchronize(self):
        if self.lost:
            raise DeviceError("cudaDeviceSynchronize failed: illegal address (error 700)")

    def latency(self, call, plan):
        call()
        return Timing(2000.0, 20.0, 1, plan.repeats)

    def measure(self, call, mode, l2, plan):
        assert (mode, l2) == ("back_to_back", "warm")
        call()
        return Timing(1000.0, 10.0, plan.calls, plan.repeats)


def bench(stock_folder=None, timer=None) -> Bench:
    return Bench(timer or FakeTimer(), host_cpu(), stock=stock_folder)


class Fake:
    """Computes it right, or as its `kind` says."""

    def __init__(self, kind: str = "right", name: str = "peer", ours: bool = False) -> None:
        self.kind, self.name, self.ours = kind, name, ours

    def available(self):
        return None

    def build(self, subject):
        return None

    def prepare(self, network, folder):
        if self.kind == "refuses":
            raise UnsupportedError("no such network")
        if self.kind == "breaks":
            raise RuntimeError("a\nkernel")
        factor = {"rough": 1.001, "lost": np.nan}.get(self.kind, 1.0)
        outputs = [want * factor for want in network._want]
        return Prepared(lambda: None, lambda: outputs, memory_bytes=5, config="c")
