"""What a tuning session shows on stderr: trials, time left, the best so far, failures by reason."""

from __future__ import annotations

import time
from collections import Counter
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.markup import escape

from .loop import Outcome, Watcher
from .runner import Result
from .spaces import Candidate
from .tasks import Task


class Shown(Watcher):
    """One line that follows the work on a terminal, else a line per batch."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._live = Live(console=self._console, refresh_per_second=4, transient=True)
        self._failed: Counter[str] = Counter()
        self._title = self._best = ""
        self._done = self._trials = self._tasks_left = 0
        self._measured, self._began = 0, time.monotonic()  # of the whole session

    def __enter__(self) -> Shown:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def batch(self, task: Task, number: int, count: int, done: int, trials: int) -> None:
        self._failed.clear()
        self._title, self._best = f"{number}/{count} {task.name}", ""
        self._done, self._trials, self._tasks_left = done, trials, count - number
        self._follow()

    def trial(self, result: Result, candidate: Candidate) -> None:
        self._done, self._measured = self._done + 1, self._measured + 1
        if result.status != "ok":
            self._failed[result.status] += 1
            text = f"{candidate.kernel.name} {candidate.config}: {result.status}: {result.message}"
            self._console.print(f"[dim]{escape(text)}[/dim]", soft_wrap=True)
        self._follow()

    def best(self, us: float | None, default_us: float | None) -> None:
        self._best = against(us, default_us)
        self._follow()
        if not self._console.is_terminal and self._done:
            self._print(self._line())

    def done(self, outcome: Outcome) -> None:
        best = outcome.best
        text = against(best.us if best else None, outcome.default_us)
        if best is not None:
            text += f", {best.kernel}"
        if outcome.shipped_us is not None:
            text += f"; the shipped table says {outcome.shipped_us:.1f} us"
        text += f"; {outcome.measured} measured, {outcome.resumed} known, of {outcome.space}"
        text += "".join(f"; {count} {reason}" for reason, count in outcome.failures.items())
        self._print(f"{outcome.spec} {outcome.epilogue}: {text}")
        for complaint in outcome.complaints:
            self._print(complaint)

    def _follow(self) -> None:
        if self._console.is_terminal:
            self._live.update(escape(self._line()))

    def _line(self) -> str:
        failed = "".join(f", {count} {reason}" for reason, count in self._failed.items())
        return f"{self._title}: {self._done}/{self._trials}{self._left()} {self._best}{failed}"

    def _left(self) -> str:
        """Time to go, as if the other convolutions took as many trials as this one."""
        if not self._measured:
            return ""
        each = (time.monotonic() - self._began) / self._measured
        trials = self._trials - self._done + self._tasks_left * self._trials
        return f", {trials * each:.0f} s to go,"

    def _print(self, text: str) -> None:
        self._console.print(escape(text), soft_wrap=True)


def against(us: float | None, default_us: float | None) -> str:
    """The best time beside the default config's."""
    if us is None:
        return "no result"
    if default_us is None:
        return f"{us:.1f} us (the default has no result)"
    return f"{us:.1f} us, {default_us / us:.2f}x the default's {default_us:.1f}"
