"""Where the time of a run of ours goes: kernels as CUPTI sees them, mapped to layers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tvm_winograd.measure.cuda_timing import CudaTimer

from .rows import KernelRow

RUNS = 20
# TVM calls the kernels of a function NAME NAME_kernel, NAME_kernel_1, ...
_KERNEL = re.compile(r"(?P<function>.+?)_kernel(_\d+)?$")


@dataclass(frozen=True)
class Launches:
    """All launches of one kernel while it was recorded."""

    kernel: str
    count: int
    us: float  # together


def record(run: Callable[[], Any], timer: CudaTimer) -> list[Launches]:
    """Records the kernels of RUNS runs with torch's profiler; nothing else may use the GPU."""
    from torch.profiler import ProfilerActivity, profile

    run()
    timer.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        for _ in range(RUNS):
            run()
        timer.synchronize()
    return [
        Launches(event.key, event.count, event.self_device_time_total)
        for event in recorded.key_averages()
        if event.self_device_time_total > 0
    ]


def kernel_rows(
    launches: Iterable[Launches], module: Mapping[str, Any], **shared: Any
) -> list[KernelRow]:
    """Makes a row per kernel, what takes the longest first.

    Args:
        launches: of RUNS runs.
        module: the network's entry of its manifest.
        shared: columns that all rows have in common: model, batch, conditions.
    """
    found = sorted(launches, key=lambda one: -one.us)
    total = sum(one.us for one in found)
    schedules = {f["name"]: f["schedule"] for f in module["functions"]}
    layers: dict[str, list[str]] = {}
    for layer in module["layers"]:
        layers.setdefault(layer["function"], []).append(layer["name"])
    rows = []
    for one in found:
        match = _KERNEL.match(one.kernel)
        function = match["function"] if match else ""
        rows.append(
            KernelRow(
                kernel=one.kernel,
                schedule=schedules.get(function, ""),
                layers=", ".join(layers.get(function, [])),
                launches=one.count / RUNS,
                us=one.us / RUNS,
                percent=100 * one.us / total,
                **shared,
            )
        )
    return rows
