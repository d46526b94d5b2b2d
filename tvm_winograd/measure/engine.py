"""The one way to measure: build, prepare, check against float64, time, keep the row.

A `Case` is one thing to measure and knows its subject; this file knows the order, and what becomes
of a case that refuses, breaks or is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from ..errors import BuildError
from .attempt import Trouble, WrongResult, attempt_on_gpu
from .builds import Built
from .cuda_timing import Timer

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Prepared:
    """Something ready to run: weights packed and on the device, memory allocated or planned."""

    call: Callable[[], Any]  # queues the work on the timer's stream and does not wait
    output: Callable[[], Any]  # the result of the last call, when the device is done
    config: str = field(default="", kw_only=True)  # kernels, knobs, versions, as text
    math: str = field(default="", kw_only=True)  # of precision.NAMES, where it is known
    note: str = field(default="", kw_only=True)  # what its rows say beside the figures
    # entered while it runs
    around: Callable[[], AbstractContextManager[Any]] = field(default=nullcontext, kw_only=True)


P = TypeVar("P", bound=Prepared)
R = TypeVar("R")
S = TypeVar("S", contravariant=True)


@dataclass(frozen=True)
class Outcome(Generic[P]):
    """What became of a case, or of one of its timings."""

    status: str  # of attempt.STATUSES
    prepared: P | None = None
    error: float | None = None  # relative Frobenius, against float64; None if it is not finite
    limit: float | None = None  # of the error
    figures: Mapping[str, Any] = field(default_factory=dict)  # columns of a row: times and labels
    note: str = ""  # why it was refused, is wrong or failed


@dataclass(frozen=True)
class TimedHow(Generic[P]):
    """One way to time a case: labels of its row, and what gives the other figures."""

    measure: Callable[[P], Mapping[str, Any]]
    labels: Mapping[str, Any] = field(default_factory=dict)


class Case(Protocol[P, R]):
    """One way to compute one thing."""

    @property
    def name(self) -> str:
        """What it is called in messages: its subject and its provider."""

    @property
    def who(self) -> str:
        """The provider alone, with its variant."""

    @property
    def ours(self) -> bool:
        """Whether it is ours: then a wrong result or a failure ends the session."""

    @property
    def needed(self) -> bool:
        """Whether a build that fails ends it too."""

    def built(self) -> Built | None:
        """Waits for what another process compiles for it; None if nothing.

        Raises:
            UnsupportedError: it cannot be computed.
        """

    def prepare(self, folder: Path | None) -> P:
        """Makes it ready to run.

        Args:
            folder: what was built.
        Raises:
            UnsupportedError: it cannot be computed here.
        """

    def error(self, prepared: P) -> float:
        """Compares the last call's output with float64; infinite if it is not finite."""

    def limit(self, prepared: P) -> float:
        """Says which error is the largest that is right."""

    def timings(self) -> Sequence[TimedHow[P]]:
        """Lists how it is timed; each makes a row."""

    def row(self, outcome: Outcome[P]) -> R:
        """Makes the row that is kept of an outcome."""

    def line(self, rows: Sequence[R]) -> str:
        """Writes a line of progress about all its rows."""


class Sink(Protocol[S]):
    """Where rows go: a `row_files.Store`, or a file of another form."""

    def add(self, rows: Sequence[S]) -> None:
        """Keeps rows that were measured together, on disk when it returns."""


def measure_all(
    cases: Iterable[Case[P, R]],
    timer: Timer,
    sink: Sink[R],
    progress: Progress = lambda text: None,
) -> list[R]:
    """Measures one case after the other and returns all rows, each in `sink` when it is there.

    Raises:
        WrongResult: a result of ours is wrong.  BuildError: a case that is needed was not compiled.
        DeviceError: the GPU's context is lost.
    """
    measured: list[R] = []
    for case in cases:
        rows = measure(case, timer)
        sink.add(rows)
        measured += rows
        progress(case.line(rows))
    return measured


def measure(case: Case[P, R], timer: Timer) -> list[R]:
    """Measures one case: a row per timing, or one that says why there is none."""
    guarded = partial(attempt_on_gpu, who=case.who, ours=case.ours, timer=timer)
    checked = guarded(partial(_checked, case, timer))
    if isinstance(checked, Trouble):
        return [case.row(Outcome(checked.status, note=checked.note))]
    if checked.status != "ok":
        return [case.row(checked)]
    rows = []
    for how in case.timings():
        timed = guarded(partial(_timed, how, checked))
        if isinstance(timed, Trouble):
            timed = Outcome(timed.status, figures=how.labels, note=timed.note)
        rows.append(case.row(timed))
    return rows


def _checked(case: Case[P, R], timer: Timer) -> Outcome[P]:
    """Builds, prepares and runs it once; the status is "ok" if the result is right."""
    built = case.built()
    if built and built.trouble:
        if case.needed:
            raise BuildError(f"{case.name}: {built.trouble.note}")
        return Outcome(built.trouble.status, note=built.trouble.note)
    prepared = case.prepare(built.folder if built else None)
    timer.synchronize()
    with prepared.around():
        with timer.current():
            prepared.call()
        timer.synchronize()
        error, limit = case.error(prepared), case.limit(prepared)
    if error <= limit:
        return Outcome("ok", prepared, error, limit, note=prepared.note)
    finite = error < float("inf")
    found = f"relative error {error:.2e}" if finite else "NaN or infinity in the result"
    note = f"{found}, limit {limit:.1e}".replace(".0e", "e")
    if case.ours:
        raise WrongResult(f"{case.name} ({prepared.config}) is wrong: {note}")
    return Outcome("wrong", prepared, error if finite else None, limit, note=note)


def _timed(how: TimedHow[P], checked: Outcome[P]) -> Outcome[P]:
    prepared = checked.prepared
    assert prepared is not None
    with prepared.around():
        figures = {**how.labels, **how.measure(prepared)}
    return replace(checked, figures=figures)
