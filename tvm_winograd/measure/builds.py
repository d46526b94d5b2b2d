"""Compilations in processes of their own, ahead of what is measured."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType

from ..errors import InputError
from .attempt import Trouble, attempt

# Compiles into a folder that exists. It is pickled; of equal ones only the first is run.
Build = Callable[[Path], object]
_NICER = 10  # added to the niceness of a process that compiles: the one that measures goes first
# Seconds after which a build hangs: a network takes minutes, torch's tuning of one a few more.
LONGEST = 1800.0


@dataclass(frozen=True)
class Built:
    """What a build made, or why it could not."""

    folder: Path
    seconds: float
    trouble: Trouble | None = None


def check_jobs(jobs: int | None) -> int:
    """How many processes are to compile; as many as there are cores if not given.

    Raises:
        InputError: none.
    """
    if jobs is not None and jobs < 1:
        raise InputError(f"--jobs {jobs}: at least one process has to compile")
    return jobs or os.cpu_count() or 1


class Builders:
    """Up to `jobs` processes, started as builds are submitted; a context manager that ends them.

    A process that dies (TVM crashed, memory ran out, or it was at one build for too long) takes
    others' work with it: what is not done then is compiled alone, when it is asked for, and only
    what dies again has failed.
    """

    def __init__(self, folder: Path, jobs: int, longest: float = LONGEST) -> None:
        """
        Args:
            folder: in it each build gets one of its own.
            longest: seconds of a build.
        """
        self._folder, self._pool, self._longest = folder, _pool(jobs), longest
        self._folders: dict[Build, Path] = {}
        self._futures: dict[Build, Future[Built]] = {}

    def __enter__(self) -> Builders:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pool.shutdown(cancel_futures=True)

    def __len__(self) -> int:
        """How many different builds were submitted."""
        return len(self._futures)

    def submit(self, build: Build) -> Future[Built]:
        """Starts a build, unless an equal one was; `built` says what becomes of it."""
        if build not in self._futures:
            folder = self._folders[build] = self._folder / str(len(self))
            try:
                self._futures[build] = self._pool.submit(_timed, build, folder, self._longest)
            except BrokenExecutor as died:
                self._futures[build] = Future()
                self._futures[build].set_exception(died)
        return self._futures[build]

    def built(self, build: Build) -> Built:
        """Waits for a build, which is submitted if it was not."""
        future = self.submit(build)
        try:
            return future.result()
        except BrokenExecutor:
            self._futures[build] = Future()
            self._futures[build].set_result(_alone(build, self._folders[build], self._longest))
            return self._futures[build].result()

    def finish(self) -> None:
        """Waits until nothing is being compiled any more."""
        wait(self._futures.values())


def _pool(jobs: int) -> ProcessPoolExecutor:
    spawn = multiprocessing.get_context("spawn")  # TVM's threads do not survive a fork
    return ProcessPoolExecutor(jobs, spawn, initializer=_start)


def _start() -> None:
    """Of a process that compiles."""
    os.nice(_NICER)
    if "torch" not in sys.modules:
        sys.modules["torch"] = None  # type: ignore[assignment]
        import tvm  # noqa: F401  took 3.2 s of a core, without torch 1.1 s (torch 2.13 for CPUs)

        del sys.modules["torch"]  # models are imported with it


def _alone(build: Build, folder: Path, longest: float) -> Built:
    """In a process that compiles nothing else."""
    start = time.perf_counter()
    with _pool(1) as pool:
        try:
            return pool.submit(_timed, build, folder, longest).result()
        except BrokenExecutor:
            seconds = time.perf_counter() - start
            hung = seconds >= longest
            why = f"took more than {longest:g} s" if hung else "the process that compiled it died"
            return Built(folder, seconds, Trouble("failed", why))


def _timed(build: Build, folder: Path, longest: float) -> Built:
    """In a process of its own, which SIGALRM ends: a compiler that hangs does not hear Python."""
    signal.setitimer(signal.ITIMER_REAL, longest)
    start = time.perf_counter()
    got = attempt(partial(_into, build, folder))
    seconds = time.perf_counter() - start
    signal.setitimer(signal.ITIMER_REAL, 0)
    return Built(folder, seconds, got if isinstance(got, Trouble) else None)


def _into(build: Build, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    build(folder)
