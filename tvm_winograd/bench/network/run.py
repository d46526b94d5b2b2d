"""Networks as cases of the engine: every provider on each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from tvm_winograd.measure.builds import Built
from tvm_winograd.measure.conditions import Conditions
from tvm_winograd.measure.cuda_timing import Plan
from tvm_winograd.measure.engine import Outcome, Progress, TimedHow, measure_all
from tvm_winograd.measure.row_files import Store

from . import profile
from .network import Network, Subject
from .ours import Ours, OursKernels
from .provider import Bench, Prepared, Provider
from .rows import KernelRow, Row
from .stock import Dlight, MetaSchedule
from .torch_peers import Torch, TorchCompile, TorchCompileTf32, TorchGraph

PROVIDERS: dict[str, Callable[[Bench], Provider]] = {
    kind.name: kind
    for kind in (
        Ours,
        OursKernels,
        Torch,
        TorchGraph,
        TorchCompile,
        TorchCompileTf32,
        Dlight,
        MetaSchedule,
    )
}
DEFAULT = tuple(name for name in PROVIDERS if name != OursKernels.name)

Key = tuple[Subject, str]  # and the name of a provider


@dataclass(frozen=True)
class Session:
    """What all measurements have in common."""

    bench: Bench
    conditions: Conditions
    rows: Store[Row]
    kernels: Store[KernelRow]
    options: str = ""  # of our compiler, as text
    profiled: bool = False
    plan: Plan = field(default_factory=Plan)
    progress: Progress = lambda text: None


def measure(
    subjects: Sequence[Subject],
    providers: Sequence[Provider],
    built: Mapping[Key, Built],
    session: Session,
) -> tuple[list[Row], list[KernelRow]]:
    """Returns all rows, which are in the session's stores as soon as each is measured.

    Raises:
        WrongResult: a network of ours is wrong.  BuildError: one was not compiled.
        DeviceError: the GPU's context is lost.
    """
    rows: list[Row] = []
    deployed: list[NetworkCase] = []  # the first of ours of each network
    timer = session.bench.timer
    for subject in subjects:
        network = Network(subject, session.bench.device)
        session.progress(f"{subject}: in float64 and in plain float32")
        limit = network.float32_error  # before a provider takes memory
        cases = [
            NetworkCase(network, provider, built.get((subject, provider.name)), limit, session)
            for provider in providers
        ]
        found = measure_all(cases, timer, session.rows, session.progress)
        rows += found
        right = zip(cases, found, strict=True)
        deployed += [c for c, row in right if c.ours and row.status == "ok"][:1]
        network.release()
    return rows, list(_profiles(deployed, session)) if session.profiled else []


def _profiles(deployed: Sequence[NetworkCase], session: Session) -> Iterator[KernelRow]:
    """Kernels of networks of ours; at the end, as the profiler may slow down what comes after."""
    for case in deployed:
        session.progress(f"{case.network.subject}: kernels of {case.who}")
        found = case.kernels()
        session.kernels.add(found)
        yield from found


@dataclass(frozen=True)
class NetworkCase:
    """A provider on a network: an engine.Case."""

    network: Network
    provider: Provider
    compiled: Built | None
    float32_error: float
    session: Session

    @property
    def who(self) -> str:
        return self.provider.name

    @property
    def name(self) -> str:
        return f"{self.network.subject}: {self.who}"

    @property
    def ours(self) -> bool:
        return self.provider.ours

    @property
    def needed(self) -> bool:
        return self.ours

    def built(self) -> Built | None:
        return self.compiled

    def prepare(self, folder: Path | None) -> Prepared:
        return self.provider.prepare(self.network, folder)

    def error(self, prepared: Prepared) -> float:
        return self.network.error(prepared.output())

    def limit(self, prepared: Prepared) -> float:
        return prepared.ratio * self.float32_error

    def timings(self) -> list[TimedHow[Prepared]]:
        return [TimedHow(self._figures)]

    def _figures(self, prepared: Prepared) -> dict[str, Any]:
        timer, plan = self.session.bench.timer, self.session.plan
        latency = timer.latency(prepared.call, plan)
        interval = timer.measure(prepared.call, "back_to_back", "warm", plan)
        return {
            "latency_ms": latency.us / 1e3,
            "latency_spread_ms": latency.spread_us / 1e3,
            "interval_ms": interval.us / 1e3,
            "interval_spread_ms": interval.spread_us / 1e3,
        }

    def kernels(self) -> list[KernelRow]:
        """Profiles a network of ours, loaded again."""
        prepared = self.prepare(self.compiled.folder if self.compiled else None)
        assert prepared.module is not None
        launches = profile.record(prepared.call, self.session.bench.timer)
        known = {f.name for f in fields(KernelRow)}
        made = asdict(self.session.conditions).items()
        shared: dict[str, Any] = {name: value for name, value in made if name in known}
        shared |= {"model": self.network.model.name, "batch": self.network.model.batch}
        shared |= {"options": self.session.options}
        return profile.kernel_rows(launches, prepared.module, **shared)

    def row(self, outcome: Outcome[Prepared]) -> Row:
        prepared, ran = outcome.prepared, {}
        if prepared:
            ran = {name: getattr(prepared, name) for name in ("config", "memory_bytes", "math")}
            ran["compile_s"] = self.compiled.seconds if self.compiled else prepared.compile_s
        return Row(
            model=self.network.model.name,
            batch=self.network.model.batch,
            provider=self.who,
            status=outcome.status,
            options=self.session.options if self.ours else "",
            error=outcome.error,
            error_limit=outcome.limit,
            note=outcome.note,
            **ran,
            **outcome.figures,
            **asdict(self.session.conditions),
        )

    def line(self, rows: Sequence[Row]) -> str:
        (row,) = rows
        name = f"{row.model}, batch {row.batch}, {row.provider}"
        if row.status != "ok":
            return f"{name}: {row.status}: {row.note}"
        return f"{name}: latency {row.latency_ms:.3f} ms, interval {row.interval_ms:.3f} ms"


def keys(subjects: Sequence[Subject], providers: Sequence[Provider]) -> list[Key]:
    """Lists what is measured; ours, which take longest to compile, first."""
    names = sorted(providers, key=lambda provider: not provider.ours)
    return [(subject, provider.name) for provider in names for subject in subjects]
