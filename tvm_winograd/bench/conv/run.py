"""Single convolutions as cases of the engine: every provider's variants of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tvm_winograd.measure.attempt import Trouble, attempt
from tvm_winograd.measure.builds import Build, Builders, Built, building, check_jobs
from tvm_winograd.measure.conditions import Conditions
from tvm_winograd.measure.cuda_timing import L2_STATES, MODES, Plan
from tvm_winograd.measure.engine import Outcome, Progress, Sink, TimedHow, measure_all
from tvm_winograd.measure.problem import Problem
from tvm_winograd.shapes import ConvSpec, Epilogue
from tvm_winograd.truth.tolerances import tolerance

from .cudnn import CudnnAlgorithms
from .ours import Ours
from .provider import Bench, Prepared, Provider, Variant
from .rows import Row
from .stock import Dlight, MetaSchedule
from .torch import Torch, TorchCompile

PROVIDERS: dict[str, Callable[[Bench], Provider]] = {
    kind.name: kind for kind in (Ours, CudnnAlgorithms, Torch, TorchCompile, Dlight, MetaSchedule)
}
# torch.compile tunes for a minute per convolution: only when it is named
DEFAULT = tuple(name for name in PROVIDERS if name != TorchCompile.name)


@dataclass(frozen=True)
class Settings:
    """What is measured of each variant, and how."""

    modes: Sequence[str] = MODES
    l2: Sequence[str] = L2_STATES
    plan: Plan = field(default_factory=Plan)
    # Processes that compile at a time, while others are measured; None: as many as there are cores.
    jobs: int | None = None


def measure(
    specs: Sequence[ConvSpec],
    epilogue: Epilogue,
    providers: Sequence[Provider],
    bench: Bench,
    conditions: Conditions,
    store: Sink[Row],
    settings: Settings | None = None,
    progress: Progress = lambda text: None,
) -> list[Row]:
    """Returns all rows, which are in `store` as soon as each is measured.

    Raises:
        WrongResult: a kernel of ours is wrong.  DeviceError: the GPU's context is lost.
    """
    settings = settings or Settings()
    jobs, builds = check_jobs(settings.jobs), _builds(specs, epilogue, providers)
    with building(builds, jobs, progress) as builders:
        if set(settings.modes) - {"graph"}:
            builders.finish()  # what the host does is measured too
        session = Session(builders, bench, conditions, settings)
        cases = _cases(specs, epilogue, providers, session)
        return measure_all(cases, bench.timer, store, progress)


def _builds(
    specs: Iterable[ConvSpec], epilogue: Epilogue, providers: Sequence[Provider]
) -> Iterator[Build]:
    """Yields all compilations, in the order in which they will be waited for."""
    for spec in specs:
        for provider in providers:
            for variant in provider.variants(spec, epilogue):
                build = attempt(variant.build) if variant.build else None
                if build and not isinstance(build, Trouble):  # else its row will say why
                    yield build


def _cases(
    specs: Iterable[ConvSpec],
    epilogue: Epilogue,
    providers: Sequence[Provider],
    session: Session,
) -> Iterator[ConvCase]:
    for spec in specs:
        problem = Problem(spec, epilogue, session.bench.device)
        for provider in providers:
            for variant in provider.variants(spec, epilogue):
                yield ConvCase(problem, provider.name, provider.ours, variant, session)


@dataclass(frozen=True)
class Session:
    """What all cases have in common."""

    builders: Builders
    bench: Bench
    conditions: Conditions
    settings: Settings


@dataclass(frozen=True)
class ConvCase:
    """A variant of a provider on a problem: an engine.Case."""

    problem: Problem
    provider: str
    ours: bool
    variant: Variant
    session: Session
    needed = False  # a kernel that does not compile is a row, of ours too

    @property
    def who(self) -> str:
        return f"{self.provider} {self.variant.name}"

    @property
    def name(self) -> str:
        return f"{self.problem.spec.key()} {self.problem.epilogue.key()}: {self.who}"

    def built(self) -> Built | None:
        build = self.variant.build
        return self.session.builders.built(build()) if build else None

    def prepare(self, folder: Path | None) -> Prepared:
        return self.variant.prepare(self.problem, folder)

    def error(self, prepared: Prepared) -> float:
        return self.problem.error(prepared.output(), prepared.layout)

    def limit(self, prepared: Prepared) -> float:
        return tolerance(self.problem.spec, prepared.algorithm, prepared.math or None)

    def timings(self) -> list[TimedHow[Prepared]]:
        settings = self.session.settings
        return [
            TimedHow(partial(self._figures, mode, l2), {"mode": mode, "l2": l2})
            for l2 in settings.l2
            for mode in settings.modes
        ]

    def _figures(self, mode: str, l2: str, prepared: Prepared) -> dict[str, Any]:
        timer, plan = self.session.bench.timer, self.session.settings.plan
        timing = timer.measure(prepared.call, mode, l2, plan)
        return {**asdict(timing), "tflops": self.problem.spec.flops / timing.us / 1e6}

    def row(self, outcome: Outcome[Prepared]) -> Row:
        prepared, ran = outcome.prepared, {}
        if prepared:
            ran = {name: getattr(prepared, name) for name in ("layout", "config", "math")}
            ran["workspace_bytes"] = prepared.workspace_bytes
        return Row(
            spec=self.problem.spec.key(),
            epilogue=self.problem.epilogue.key(),
            provider=self.provider,
            variant=self.variant.name,
            status=outcome.status,
            error=outcome.error,
            note=outcome.note,
            **ran,
            **outcome.figures,
            **asdict(self.session.conditions),
        )

    def line(self, rows: Sequence[Row]) -> str:
        first = rows[0]
        times = ", ".join(f"{row.us:.1f} us ({row.mode}, {row.l2})" for row in rows if row.us)
        return f"{first.spec} {first.name}: {times or f'{first.status}: {first.note}'}"
