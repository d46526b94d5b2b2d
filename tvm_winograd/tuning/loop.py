"""Tuning: batch after batch of candidates, everything on disk before the next one starts."""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from .. import precision
from ..choose.select import Limits, choose
from ..gpu import Hardware
from ..measure.provenance import Provenance
from ..shapes import Epilogue
from ..tables import lookup as logs
from ..tables import store as log_store
from ..tables.lookup import Row
from . import journal
from .journal import Trial
from .order import Order
from .runner import Result, Runner
from .spaces import Candidate, Space, space_of
from .tasks import Task


@dataclass(frozen=True)
class Settings:
    """How much is tried."""

    trials: int = 64  # candidates measured per convolution
    per_batch: int = 16  # candidates built together and put on disk together
    math: str = "float32"  # of precision.WISHES: the kernels that are tried


@dataclass(frozen=True)
class Outcome:
    """One convolution, tuned."""

    spec: str
    epilogue: str
    space: int  # candidates
    hopeless: int  # configs that the estimate left out
    measured: int  # in this session
    resumed: int  # in sessions before
    best: Row | None
    default_us: float | None  # the default config's time
    shipped_us: float | None  # what the shipped table says about this GPU
    failures: dict[str, int] = field(default_factory=dict)  # reason -> candidates
    complaints: list[str] = field(default_factory=list)  # about unreadable lines

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Watcher:
    """Told what happens; `progress.Progress` shows it."""

    def batch(self, task: Task, number: int, count: int, done: int, trials: int) -> None: ...

    def trial(self, result: Result, candidate: Candidate) -> None: ...

    def best(self, us: float | None, default_us: float | None) -> None: ...

    def done(self, outcome: Outcome) -> None: ...


def tune(
    tasks: Sequence[Task],
    hardware: Hardware,
    runner: Runner,
    made: Provenance,
    out: Path,
    settings: Settings,
    watcher: Watcher | None = None,
) -> list[Outcome]:
    """Tune each convolution; tables and journal lie in `out`.

    Two convolutions take turns: one's candidates are built while the other's are measured.

    Raises:
        LogError: they cannot be written; what was there is kept.
    """
    watcher = watcher or Watcher()
    sessions = (
        Session(task, None, hardware, runner, made, out, settings, (number, len(tasks)))
        for number, task in enumerate(tasks, start=1)
    )
    outcomes: dict[int, Outcome] = {}
    turns: deque[tuple[Session, list[Candidate]]] = deque()
    for session in sessions:
        _take_turn(session, turns, outcomes, watcher)
        while len(turns) > 1:
            _measure_first(turns, outcomes, watcher)
    while turns:
        _measure_first(turns, outcomes, watcher)
    return [outcomes[number] for number in sorted(outcomes)]


def _take_turn(
    session: Session,
    turns: deque[tuple[Session, list[Candidate]]],
    outcomes: dict[int, Outcome],
    watcher: Watcher,
) -> None:
    """Start building the session's next batch, or finish it if there is none."""
    if batch := session.next():
        turns.append((session, batch))
    else:
        outcomes[session.number] = session.outcome()
        watcher.done(outcomes[session.number])


def _measure_first(
    turns: deque[tuple[Session, list[Candidate]]], outcomes: dict[int, Outcome], watcher: Watcher
) -> None:
    session, batch = turns.popleft()
    session.measure(batch, watcher)
    _take_turn(session, turns, outcomes, watcher)


class Session:
    """The tuning of one convolution."""

    def __init__(
        self,
        task: Task,
        space: Space | None,
        hardware: Hardware,
        runner: Runner,
        made: Provenance,
        out: Path,
        settings: Settings,
        place: tuple[int, int] = (1, 1),
    ) -> None:
        """`space`: other candidates than all; `place`: (number, of how many convolutions)."""
        self._task, self._runner = task, runner
        self._limits = Limits(math=settings.math)
        self._space = space or space_of(task.spec, task.epilogue, hardware, limits=self._limits)
        self._made, self._out, self._settings = made, out, settings
        self._hardware, (self.number, self._count) = hardware, place
        self._journal = journal.journal_path(out, made.arch, made.gpu)
        self._complaints: list[str] = []
        self._keys = {self._key(c): c for c in self._space.candidates}
        self._order = Order(self._space.candidates, settings.trials, hardware)
        self._known = self.known()
        self._resumed = len(self._known)
        self._order.learn([(self._keys[key], t.us) for key, t in self._known.items()])
        self._write(Watcher())

    def run(self, watcher: Watcher) -> Outcome:
        """Measure what no session did yet, up to the number of trials."""
        while batch := self.next():
            self.measure(batch, watcher)
        return self.outcome()

    def next(self) -> list[Candidate]:
        """The candidates to be measured next, which the runner starts to build."""
        left = self._settings.trials - len(self._known)
        batch = self._order.next(min(left, self._settings.per_batch)) if left > 0 else []
        if batch:
            self._runner.build(self._task.spec, self._task.epilogue, batch)
        return batch

    def measure(self, batch: Sequence[Candidate], watcher: Watcher) -> None:
        """Measure what `next` gave, put it on disk and learn from it."""
        spec, epilogue = self._task.spec, self._task.epilogue
        trials = min(self._settings.trials, len(self._keys))
        watcher.batch(self._task, self.number, self._count, len(self._known), trials)
        results = self._runner.measure(spec, epilogue, batch)
        made = []
        for candidate, result in zip(batch, results, strict=True):
            made.append(self._trial(candidate, **asdict(result)))
            watcher.trial(result, candidate)
        journal.append(self._journal, made)
        before, self._known = self._known, self.known()  # another tuner's trials are in it too
        news = {key: t for key, t in self._known.items() if key not in before}
        self._order.learn([(self._keys[key], t.us) for key, t in news.items()])
        self._write(watcher)

    def known(self) -> dict[tuple[str, ...], Trial]:
        """This space's trials in the journal."""
        found, self._complaints = journal.read(self._journal)
        return {key: found[key] for key in self._keys if key in found}

    def _write(self, watcher: Watcher) -> None:
        """Each kernel's best into the table, for every epilogue of the task."""
        rows = self._rows()
        if rows:
            self._complaints += log_store.merge(self._out, rows)
        watcher.best(rows[0].us if rows else None, self._default_us())

    def _rows(self) -> list[Row]:
        """The fastest first."""
        known = self._known
        good = [(t.us, key) for key, t in known.items() if t.us is not None]
        best: dict[str, Row] = {}
        for us, key in sorted(good):
            candidate = self._keys[key]
            row = self._row(candidate, us, known[key], len(known))
            best.setdefault(candidate.kernel.name, row)
        rows = list(best.values())
        return rows + [_transferred(row, other) for other in self._task.others for row in rows]

    def _row(self, candidate: Candidate, us: float, one: Trial, trials: int) -> Row:
        return Row(
            spec=one.spec,
            epilogue=one.epilogue,
            kernel=one.kernel,
            math=candidate.kernel.math_of(self._task.spec),
            config=json.loads(one.config),
            us=us,
            algorithm=candidate.kernel.algorithm,
            error=one.error,
            trials=trials,
            **asdict(self._made),
        )

    def _default_us(self) -> float | None:
        """Of what the compiler takes without a table, if it is one of the candidates."""
        choice = choose(self._task.spec, self._task.epilogue, self._hardware, limits=self._limits)
        for key, c in self._keys.items():
            if (c.kernel.name, c.config) == (
                choice.kernel.name,
                choice.config,
            ) and key in self._known:
                return self._known[key].us
        return None

    def _shipped_us(self) -> float | None:
        rows, _ = logs.read_folder(logs.shipped_folder(), self._made.arch)
        rows = [row for row in rows if row.gpu == self._made.gpu]
        may = precision.allowed(self._settings.math, self._task.spec.dtype)
        found = logs.lookup(rows, self._task.spec, self._task.epilogue, maths=may)
        return found[0].us if found else None

    def _trial(self, candidate: Candidate, **result: Any) -> Trial:
        return journal.trial(
            self._task.spec,
            self._task.epilogue,
            candidate.kernel.name,
            candidate.config,
            f"{self._made.tvm} {candidate.program}",
            **result,
        )

    def _key(self, candidate: Candidate) -> tuple[str, ...]:
        return self._trial(candidate, status="").key

    def outcome(self) -> Outcome:
        failures = Counter(self._space.illegal)
        failures.update(t.status for t in self._known.values() if t.status != "ok")
        rows = self._rows()
        return Outcome(
            spec=self._task.spec.key(),
            epilogue=self._task.epilogue.key(),
            space=len(self._space.candidates),
            hopeless=self._space.hopeless,
            measured=len(self._known) - self._resumed,
            resumed=self._resumed,
            best=rows[0] if rows else None,
            default_us=self._default_us(),
            shipped_us=self._shipped_us(),
            failures=dict(failures),
            complaints=list(dict.fromkeys(self._complaints)),
        )


def _transferred(row: Row, other: Epilogue) -> Row:
    return replace(row, epilogue=other.key(), origin="transferred")
