"""Measures convolutions with every provider: checked against float64 first, then timed."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from tvm_winograd.measure.attempt import Trouble, WrongResult, attempt, attempt_on_gpu
from tvm_winograd.measure.builds import Builders, check_jobs
from tvm_winograd.measure.conditions import Conditions
from tvm_winograd.measure.cuda_timing import L2_STATES, MODES, Plan
from tvm_winograd.shapes import ConvSpec, Epilogue
from tvm_winograd.truth.tolerances import tolerance

from .cudnn import CudnnAlgorithms
from .ours import Ours
from .problem import Problem
from .provider import Bench, Prepared, Provider, Variant
from .rows import Row, Store
from .stock import Dlight, MetaSchedule
from .torch import Torch, TorchCompile

PROVIDERS: dict[str, Callable[[Bench], Provider]] = {
    kind.name: kind for kind in (Ours, CudnnAlgorithms, Torch, TorchCompile, Dlight, MetaSchedule)
}
# torch.compile tunes for a minute per convolution: only when it is named
DEFAULT = tuple(name for name in PROVIDERS if name != TorchCompile.name)
T = TypeVar("T")


@dataclass(frozen=True)
class Settings:
    """What is measured of each variant."""

    modes: Sequence[str] = MODES
    l2: Sequence[str] = L2_STATES
    plan: Plan = field(default_factory=Plan)


def measure(
    specs: Sequence[ConvSpec],
    epilogue: Epilogue,
    providers: Sequence[Provider],
    bench: Bench,
    conditions: Conditions,
    store: Store,
    settings: Settings | None = None,
    progress: Callable[[str], None] = lambda text: None,
    jobs: int | None = None,
) -> list[Row]:
    """All rows, which are in `store` as soon as each is measured.

    Args:
        jobs: processes that compile at a time, while others are measured; as many as there are
            cores if not given.
    Raises:
        WrongResult: a kernel of ours is wrong.  DeviceError: the GPU's context is lost.
    """
    settings, measured = settings or Settings(), []
    with _building(specs, epilogue, providers, check_jobs(jobs), progress) as builders:
        if "back_to_back" in settings.modes:
            builders.finish()  # what the host takes for a launch is measured too
        for spec in specs:
            problem = Problem(spec, epilogue)
            for provider in providers:
                for variant in provider.variants(spec, epilogue):
                    one = _One(problem, provider, variant, builders, bench, conditions)
                    rows = one.rows(settings)
                    store.add(rows)
                    measured += rows
                    progress(_line(rows))
    return measured


@contextmanager
def _building(
    specs: Sequence[ConvSpec],
    epilogue: Epilogue,
    providers: Sequence[Provider],
    jobs: int,
    progress: Callable[[str], None],
) -> Iterator[Builders]:
    """All compilations started, in the order in which they will be waited for."""
    with (
        tempfile.TemporaryDirectory(prefix="bench-conv-") as scratch,
        Builders(Path(scratch), jobs) as builders,
    ):
        for spec in specs:
            for provider in providers:
                for variant in provider.variants(spec, epilogue):
                    build = attempt(variant.build) if variant.build else None
                    if build and not isinstance(build, Trouble):  # else its row will say why
                        builders.submit(build)
        if builds := len(builders):
            progress(f"kernels to compile: {builds}, {min(jobs, builds)} at a time")
        yield builders


@dataclass(frozen=True)
class _One:
    """A variant of a provider on a problem."""

    problem: Problem
    provider: Provider
    variant: Variant
    builders: Builders
    bench: Bench
    conditions: Conditions

    def rows(self, settings: Settings) -> list[Row]:
        ready = self._guarded(self._ready)
        if isinstance(ready, Row):
            return [ready]
        prepared, error = ready
        return [
            self._guarded(partial(self._timed, prepared, error, mode, l2, settings.plan), mode, l2)
            for l2 in settings.l2
            for mode in settings.modes
        ]

    def _ready(self) -> tuple[Prepared, float] | Row:
        """Prepared and checked, with its error; or the row that says why not."""
        built = self.builders.built(self.variant.build()) if self.variant.build else None
        if built and built.trouble:
            return self._row(built.trouble.status, note=built.trouble.note)
        prepared = self.variant.prepare(self.problem, built.folder if built else None)
        error = self._check(prepared)
        limit = tolerance(self.problem.spec, prepared.algorithm, prepared.math or None)
        if not error <= limit:
            return self._wrong(prepared, error, limit)
        return prepared, error

    def _guarded(self, work: Callable[[], T], mode: str = "", l2: str = "") -> T | Row:
        """The result of `work`, or the row of a peer's failure."""
        who = f"{self.provider.name} {self.variant.name}"
        got = attempt_on_gpu(work, who, self.provider.ours, self.bench.timer)
        if isinstance(got, Trouble):
            return self._row(got.status, mode=mode, l2=l2, note=got.note)
        return got

    def _check(self, prepared: Prepared) -> float:
        """The relative error of one run on poisoned memory."""
        timer = self.bench.timer
        timer.synchronize()
        with timer.current():
            prepared.call()
        timer.synchronize()
        return self.problem.error(prepared.output(), prepared.layout)

    def _timed(self, prepared: Prepared, error: float, mode: str, l2: str, plan: Plan) -> Row:
        timing = self.bench.timer.measure(prepared.call, mode, l2, plan)
        return self._row(
            "ok",
            prepared,
            mode=mode,
            l2=l2,
            us=timing.us,
            spread_us=timing.spread_us,
            tflops=self.problem.spec.flops / timing.us / 1e6,
            error=error,
            calls=timing.calls,
            repeats=timing.repeats,
        )

    def _wrong(self, prepared: Prepared, error: float, limit: float) -> Row:
        spec, finite = self.problem.spec, error < float("inf")
        found = f"relative error {error:.2e}" if finite else "NaN or infinity in the result"
        note = f"{found}, limit {limit:.0e}"
        if self.provider.ours:
            raise WrongResult(
                f"{spec.key()} {self.problem.epilogue.key()}: {self.provider.name} "
                f"{self.variant.name} ({prepared.config}) is wrong: {note}"
            )
        return self._row("wrong", prepared, error=error if finite else None, note=note)

    def _row(self, status: str, prepared: Prepared | None = None, **values: object) -> Row:
        run = (
            {
                "layout": prepared.layout,
                "config": prepared.config,
                "math": prepared.math,
                "workspace_bytes": prepared.workspace_bytes,
            }
            if prepared
            else {}
        )
        return Row(
            spec=self.problem.spec.key(),
            epilogue=self.problem.epilogue.key(),
            provider=self.provider.name,
            variant=self.variant.name,
            status=status,
            **run,  # type: ignore[arg-type]
            **values,  # type: ignore[arg-type]
            **asdict(self.conditions),
        )


def _line(rows: Sequence[Row]) -> str:
    """A line of progress."""
    first = rows[0]
    times = ", ".join(f"{row.us:.1f} us ({row.mode}, {row.l2})" for row in rows if row.us)
    return f"{first.spec} {first.name}: {times or f'{first.status}: {first.note}'}"
