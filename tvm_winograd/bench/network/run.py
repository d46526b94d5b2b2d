"""Measures networks with every provider: checked against float64 first, then timed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from tvm_winograd.errors import BuildError
from tvm_winograd.measure.attempt import Trouble, WrongResult, attempt_on_gpu
from tvm_winograd.measure.builds import Built
from tvm_winograd.measure.cuda_timing import Plan
from tvm_winograd.measure.row_files import Store

from ...measure.conditions import Conditions
from . import profile
from .builds import Key
from .network import Network, Subject
from .ours import Ours, OursKernels
from .provider import Bench, Prepared, Provider
from .rows import KernelRow, Row
from .stock import Dlight, MetaSchedule
from .torch_peers import Torch, TorchCompile, TorchGraph

PROVIDERS: dict[str, Callable[[Bench], Provider]] = {
    kind.name: kind
    for kind in (Ours, OursKernels, Torch, TorchGraph, TorchCompile, Dlight, MetaSchedule)
}
DEFAULT = tuple(name for name in PROVIDERS if name != OursKernels.name)


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
    progress: Callable[[str], None] = lambda text: None


def measure(
    subjects: Sequence[Subject],
    providers: Sequence[Provider],
    built: Mapping[Key, Built],
    session: Session,
) -> tuple[list[Row], list[KernelRow]]:
    """All rows, which are in the session's stores as soon as each is measured.

    Raises:
        WrongResult: a network of ours is wrong.  BuildError: one was not compiled.
        DeviceError: the GPU's context is lost.
    """
    rows: list[Row] = []
    deployed: list[_One] = []  # the first of ours of each network
    for subject in subjects:
        network = Network(subject, session.bench.device)
        session.progress(f"{subject}: in float64 and in plain float32")
        limit = network.float32_error  # before a provider takes memory
        mine: list[_One] = []
        for provider in providers:
            one = _One(network, provider, built.get((subject, provider.name)), limit, session)
            row = one.row()
            session.rows.add([row])
            rows.append(row)
            mine += [one] if provider.ours and row.status == "ok" else []
            session.progress(_line(row))
        network.release()
        deployed += mine[:1]
    return rows, _profiles(deployed, session) if session.profiled else []


def _profiles(deployed: Sequence[_One], session: Session) -> list[KernelRow]:
    """Kernels of networks of ours; at the end, as the profiler may slow down what comes after."""
    kernels: list[KernelRow] = []
    for one in deployed:
        session.progress(f"{one.network.subject}: kernels of {one.provider.name}")
        found = one.kernels()
        session.kernels.add(found)
        kernels += found
    return kernels


@dataclass(frozen=True)
class _One:
    """A provider on a network."""

    network: Network
    provider: Provider
    built: Built | None
    float32_error: float
    session: Session

    def row(self) -> Row:
        """Checked and timed."""
        if self.built and self.built.trouble:
            return self._row(self._not_built(self.built.trouble))
        provider, timer = self.provider, self.session.bench.timer
        got = attempt_on_gpu(self._measured, provider.name, provider.ours, timer)
        return self._row(got) if isinstance(got, Trouble) else got

    def kernels(self) -> list[KernelRow]:
        """Of a network of ours, loaded again."""
        prepared, made = self._prepared(), asdict(self.session.conditions)
        assert prepared.module is not None
        launches = profile.record(prepared.run, self.session.bench.timer)
        known = {f.name for f in fields(KernelRow)}
        shared = {name: value for name, value in made.items() if name in known}
        shared |= {"model": self.network.model.name, "batch": self.network.model.batch}
        shared |= {"options": self.session.options}
        return profile.kernel_rows(launches, prepared.module, **shared)

    def _prepared(self) -> Prepared:
        return self.provider.prepare(self.network, self.built.folder if self.built else None)

    def _measured(self) -> Row:
        prepared = self._prepared()
        limit = prepared.ratio * self.float32_error
        with prepared.around():
            error = self._check(prepared)
            if not error <= limit:
                return self._wrong(prepared, error, limit)
            timer, plan = self.session.bench.timer, self.session.plan
            latency = timer.latency(prepared.run, plan)
            interval = timer.measure(prepared.run, "back_to_back", "warm", plan)
        return self._row(
            prepared,
            latency_ms=latency.us / 1e3,
            latency_spread_ms=latency.spread_us / 1e3,
            interval_ms=interval.us / 1e3,
            interval_spread_ms=interval.spread_us / 1e3,
            error=error,
            error_limit=limit,
        )

    def _check(self, prepared: Prepared) -> float:
        """The relative error of one run."""
        timer = self.session.bench.timer
        timer.synchronize()
        with timer.current():
            prepared.run()
        timer.synchronize()
        return self.network.error(prepared.outputs())

    def _not_built(self, trouble: Trouble) -> Trouble:
        if self.provider.ours:
            raise BuildError(f"{self.network.subject}: {self.provider.name}: {trouble.note}")
        return trouble

    def _wrong(self, prepared: Prepared, error: float, limit: float) -> Row:
        finite = error < float("inf")
        found = f"relative error {error:.2e}" if finite else "NaN or infinity in the result"
        note = f"{found}, limit {limit:.1e}"
        if self.provider.ours:
            raise WrongResult(
                f"{self.network.subject}: {self.provider.name} ({prepared.config}) is wrong: {note}"
            )
        return self._row(
            prepared, "wrong", error=error if finite else None, error_limit=limit, note=note
        )

    def _row(self, what: Prepared | Trouble, status: str = "ok", **values: Any) -> Row:
        if isinstance(what, Trouble):
            status, values = what.status, {"note": what.note}
        else:
            values |= {"memory_bytes": what.memory_bytes, "config": what.config, "math": what.math}
            values["compile_s"] = self.built.seconds if self.built else what.compile_s
        return Row(
            model=self.network.model.name,
            batch=self.network.model.batch,
            provider=self.provider.name,
            status=status,
            options=self.session.options if self.provider.ours else "",
            **values,
            **asdict(self.session.conditions),
        )


def keys(subjects: Sequence[Subject], providers: Sequence[Provider]) -> list[Key]:
    """What is measured; ours, which take longest to compile, first."""
    names = sorted(providers, key=lambda provider: not provider.ours)
    return [(subject, provider.name) for provider in names for subject in subjects]


def _line(row: Row) -> str:
    """A line of progress."""
    name = f"{row.model}, batch {row.batch}, {row.provider}"
    if row.status != "ok":
        return f"{name}: {row.status}: {row.note}"
    return f"{name}: latency {row.latency_ms:.3f} ms, interval {row.interval_ms:.3f} ms"
