"""Compilations in processes of their own, ahead of what is measured: the one pool of processes."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor, as_completed, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from ..errors import InputError
from .attempt import Trouble, attempt

# Compiles into a folder that exists. It is pickled; of equal ones only the first is run.
Build = Callable[[Path], object]
K = TypeVar("K", bound=Hashable)
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
    """Says how many processes are to compile; as many as there are cores if not given.

    Raises:
        InputError: fewer than one.
    """
    if jobs is not None and jobs < 1:
        raise InputError(f"--jobs {jobs}: at least one process has to compile")
    return jobs or os.cpu_count() or 1


class Builders:
    """Up to `jobs` processes, started as builds are submitted; a context manager that ends them.

    A process that dies (TVM crashed, memory ran out, or it was at one build for too long) takes the
    others with it. A new pool then compiles what had not begun; what had is compiled alone when it
    is asked for, and only what dies again has failed.
    """

    def __init__(self, folder: Path, jobs: int, longest: float = LONGEST) -> None:
        """
        Args:
            folder: in it each build gets one of its own.
            longest: seconds of a build.
        """
        self._folder, self._jobs, self._longest = folder, jobs, longest
        self._pool, self._number = _pool(jobs), itertools.count()
        self._abandoned = False
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

    def abandon(self) -> None:
        """Ends the processes at once, whatever they are compiling."""
        self._abandoned = True
        marks = [_mark(folder) for folder in self._folders.values()]
        busy = {mark.read_text() for mark in marks if mark.exists()}
        for child in multiprocessing.active_children():
            if str(child.pid) in busy:
                child.kill()
        self._pool.shutdown(cancel_futures=True)

    def __len__(self) -> int:
        """Counts the different builds that were submitted."""
        return len(self._futures)

    def submit(self, build: Build) -> Future[Built]:
        """Starts a build, unless an equal one was; `built` says what becomes of it."""
        if build not in self._futures:
            self._folders[build] = self._folder / str(next(self._number))
            try:
                self._start(build)
            except BrokenExecutor:
                self._renew()
                self._start(build)
        return self._futures[build]

    def built(self, build: Build) -> Built:
        """Waits for a build, which is submitted if it was not."""
        self.submit(build)
        folder = self._folders[build]
        for _ in range(2):
            try:
                return self._futures[build].result()
            except BrokenExecutor:
                if self._abandoned:
                    raise
                if _mark(folder).exists():
                    break
                self._renew()
        self._futures[build] = Future()
        self._futures[build].set_result(_alone(build, folder, self._longest))
        return self._futures[build].result()

    def forget(self, build: Build) -> None:
        """Drops what a finished build made, which was used."""
        if self._futures.pop(build, None):
            shutil.rmtree(self._folders.pop(build), ignore_errors=True)

    def finish(self) -> None:
        """Waits until nothing is being compiled any more."""
        wait(self._futures.values())

    def _start(self, build: Build) -> None:
        made = self._folders[build]
        self._futures[build] = self._pool.submit(_timed, build, made, self._longest)

    def _renew(self) -> None:
        """Replaces a pool of which a process died, and submits what no process had begun."""
        self._pool.shutdown()
        self._pool = _pool(self._jobs)
        for build, future in list(self._futures.items()):
            died = future.done() and isinstance(future.exception(), BrokenExecutor)
            if died and not _mark(self._folders[build]).exists():
                self._start(build)


@contextmanager
def building(
    builds: Iterable[Build], jobs: int, progress: Callable[[str], None]
) -> Iterator[Builders]:
    """Starts builds in the order in which they will be waited for, in a temporary folder."""
    with (
        tempfile.TemporaryDirectory(prefix="tvm_winograd-bench-") as scratch,
        Builders(Path(scratch), jobs) as builders,
    ):
        for build in builds:
            builders.submit(build)
        if count := len(builders):
            progress(f"kernels to compile: {count}, {min(jobs, count)} at a time")
        yield builders


def build_all(
    builds: Mapping[K, Build],
    scratch: Path,
    jobs: int,
    finished: Callable[[K, Built], None] = lambda key, built: None,
    longest: float = LONGEST,
) -> dict[K, Built]:
    """Runs all builds, `jobs` at a time, each in a folder of its own in `scratch`.

    Args:
        finished: called with each as soon as it is there.
        longest: seconds of a build.
    """
    made: dict[K, Built] = {}
    with Builders(scratch, jobs, longest) as builders:
        started = {key: builders.submit(build) for key, build in builds.items()}
        for future in as_completed(started.values()):
            for key in (key for key, mine in started.items() if mine is future):
                made[key] = builders.built(builds[key])
                finished(key, made[key])
    return made


def _pool(jobs: int) -> ProcessPoolExecutor:
    spawn = multiprocessing.get_context("spawn")  # TVM's threads do not survive a fork
    return ProcessPoolExecutor(jobs, spawn, initializer=_start)


def _start() -> None:
    """Prepares a process that compiles."""
    os.nice(_NICER)
    if "torch" not in sys.modules:
        sys.modules["torch"] = None  # type: ignore[assignment]
        import tvm  # noqa: F401  took 3.2 s of a core, without torch 1.1 s (torch 2.13 for CPUs)

        del sys.modules["torch"]  # models are imported with it


def _alone(build: Build, folder: Path, longest: float) -> Built:
    """Builds in a process that compiles nothing else."""
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
    """Builds in this process, which SIGALRM ends: a compiler that hangs does not hear Python."""
    signal.setitimer(signal.ITIMER_REAL, longest)
    start = time.perf_counter()
    got = attempt(partial(_into, build, folder))
    seconds = time.perf_counter() - start
    signal.setitimer(signal.ITIMER_REAL, 0)
    _mark(folder).unlink(missing_ok=True)
    return Built(folder, seconds, got if isinstance(got, Trouble) else None)


def _mark(folder: Path) -> Path:
    """Names the file with the id of the process that compiles into `folder`, or died of that."""
    return folder.with_name(folder.name + ".begun")


def _into(build: Build, folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    _mark(folder).write_text(str(os.getpid()))
    folder.mkdir(parents=True, exist_ok=True)
    build(folder)
