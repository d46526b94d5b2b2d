"""Tuning: batch after batch of candidates, everything on disk before the next one starts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from .. import log_store, logs
from ..gpu import Hardware
from ..logs import Row
from ..select import choose
from ..shapes import Epilogue
from . import journal
from .journal import Trial
from .order import Order
from .provenance import Provenance
from .runner import Result, Runner
from .spaces import Candidate, Space, space_of
from .tasks import Task


@dataclass(frozen=True)
class Settings:
    """How much is tried."""

    trials: int = 64  # candidates measured per convolution
    per_batch: int = 16  # candidates built together and put on disk together


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

    def start(self, task: Task, number: int, count: int, trials: int) -> None: ...

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

    Raises:
        LogError: they cannot be written; what was there is kept.
    """
    watcher = watcher or Watcher()
    outcomes = []
    for number, task in enumerate(tasks, start=1):
        space = space_of(task.spec, task.epilogue, hardware)
        session = Session(task, space, hardware, runner, made, out, settings)
        trials = min(settings.trials, len(space.candidates))
        watcher.start(task, number, len(tasks), max(0, trials - len(session.known())))
        outcome = session.run(watcher)
        watcher.done(outcome)
        outcomes.append(outcome)
    return outcomes


class Session:
    """The tuning of one convolution."""

    def __init__(
        self,
        task: Task,
        space: Space,
        hardware: Hardware,
        runner: Runner,
        made: Provenance,
        out: Path,
        settings: Settings,
    ) -> None:
        self._task, self._space, self._runner = task, space, runner
        self._made, self._out, self._settings = made, out, settings
        self._hardware = hardware
        self._journal = journal.journal_path(out, made.arch, made.gpu)
        self._complaints: list[str] = []
        self._keys = {self._key(c): c for c in space.candidates}

    def run(self, watcher: Watcher) -> Outcome:
        """Measure what no session did yet, up to the number of trials."""
        known = self.known()
        resumed = len(known)
        order = Order(self._space.candidates, self._settings.trials, self._hardware)
        order.learn([(self._keys[key], t.us) for key, t in known.items()])
        self._write(known, watcher)
        while (left := self._settings.trials - len(known)) > 0:
            batch = order.next(min(left, self._settings.per_batch))
            if not batch:
                break
            self._measure(batch, watcher)
            before, known = known, self.known()  # another tuner's trials are in it too
            order.learn([(self._keys[k], t.us) for k, t in known.items() if k not in before])
            self._write(known, watcher)
        return self._outcome(known, resumed)

    def known(self) -> dict[tuple[str, ...], Trial]:
        """This space's trials in the journal."""
        found, self._complaints = journal.read(self._journal)
        return {key: found[key] for key in self._keys if key in found}

    def _measure(self, batch: Sequence[Candidate], watcher: Watcher) -> None:
        spec, epilogue = self._task.spec, self._task.epilogue
        trials = []
        results = self._runner.measure(spec, epilogue, batch)
        for candidate, result in zip(batch, results, strict=True):
            trials.append(self._trial(candidate, **asdict(result)))
            watcher.trial(result, candidate)
        journal.append(self._journal, trials)

    def _write(self, known: dict[tuple[str, ...], Trial], watcher: Watcher) -> None:
        """Each kernel's best into the table, for every epilogue of the task."""
        rows = self._rows(known)
        if rows:
            self._complaints += log_store.merge(self._out, rows)
        watcher.best(rows[0].us if rows else None, self._default_us(known))

    def _rows(self, known: dict[tuple[str, ...], Trial]) -> list[Row]:
        """The fastest first."""
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
            config=json.loads(one.config),
            us=us,
            algorithm=candidate.kernel.algorithm,
            error=one.error,
            trials=trials,
            **asdict(self._made),
        )

    def _default_us(self, known: dict[tuple[str, ...], Trial]) -> float | None:
        """Of what the compiler takes without a table, if it is one of the candidates."""
        choice = choose(self._task.spec, self._task.epilogue, self._hardware)
        for key, c in self._keys.items():
            if (c.kernel.name, c.config) == (choice.kernel.name, choice.config) and key in known:
                return known[key].us
        return None

    def _shipped_us(self) -> float | None:
        rows, _ = logs.read_folder(logs.shipped_folder(), self._made.arch)
        rows = [row for row in rows if row.gpu == self._made.gpu]
        found = logs.lookup(rows, self._task.spec, self._task.epilogue)
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

    def _outcome(self, known: dict[tuple[str, ...], Trial], resumed: int) -> Outcome:
        failures = Counter(self._space.illegal)
        failures.update(t.status for t in known.values() if t.status != "ok")
        rows = self._rows(known)
        return Outcome(
            spec=self._task.spec.key(),
            epilogue=self._task.epilogue.key(),
            space=len(self._space.candidates),
            hopeless=self._space.hopeless,
            measured=len(known) - resumed,
            resumed=resumed,
            best=rows[0] if rows else None,
            default_us=self._default_us(known),
            shipped_us=self._shipped_us(),
            failures=dict(failures),
            complaints=list(dict.fromkeys(self._complaints)),
        )


def _transferred(row: Row, other: Epilogue) -> Row:
    return replace(row, epilogue=other.key(), origin="transferred")
