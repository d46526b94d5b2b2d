"""Timing of calls on this machine's CPU, with the interface of `cuda_timing.CudaTimer`."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from ..errors import InputError
from .cuda_timing import Call, Plan, Timing

MODE, L2 = "calls", "warm"  # one call after the other, their data in the caches
_LEAST = 10  # calls


class CpuTimer:
    """Times calls that return when they are done."""

    handle = 0

    def current(self) -> AbstractContextManager[Any]:
        """Changes nothing: calls run where they are made."""
        return nullcontext()

    def synchronize(self) -> None:
        """Waits for nothing."""

    def measure(
        self, call: Call, mode: str = MODE, l2: str = L2, plan: Plan | None = None
    ) -> Timing:
        """Times single calls until `plan.total_ms` are over, ten at least.

        Raises:
            InputError: another mode or state than MODE and L2.
        """
        if (mode, l2) != (MODE, L2):
            raise InputError(f"{mode}, {l2}: on a CPU there is {MODE}, {L2}")
        plan = plan or Plan()
        times: list[float] = []
        while len(times) < _LEAST or sum(times) < plan.total_ms * 1e3:
            start = time.perf_counter()
            call()
            times.append((time.perf_counter() - start) * 1e6)
        return Timing.of(times, 1)
