"""Compilations in processes of their own, all of them before anything is measured."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Mapping
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ...errors import BuildError
from ..attempt import Trouble, attempt
from .network import Subject
from .provider import Build

Key = tuple[Subject, str]  # and the name of a provider


@dataclass(frozen=True)
class Built:
    """What a build made, or why it could not."""

    folder: Path
    seconds: float
    trouble: Trouble | None = None


def build_all(
    builds: Mapping[Key, Build],
    scratch: Path,
    workers: int,
    progress: Callable[[str], None] = lambda text: None,
) -> dict[Key, Built]:
    """Runs all builds, `workers` at a time, each in a folder of its own in `scratch`.

    Raises:
        BuildError: a process died.
    """
    made: dict[Key, Built] = {}
    if not builds:
        return made
    spawn = multiprocessing.get_context("spawn")  # TVM's threads do not survive a fork
    with ProcessPoolExecutor(min(workers, len(builds)), spawn) as pool:
        futures = {}
        for number, (key, build) in enumerate(builds.items()):
            futures[pool.submit(_timed, build, scratch / str(number))] = key
        for future in as_completed(futures):
            key = futures[future]
            try:
                made[key] = future.result()
            except BrokenExecutor as error:
                raise BuildError(
                    f"a process that compiles died ({error}); with fewer at a time (--jobs) they "
                    "need less memory"
                ) from error
            progress(_line(key, made[key]))
    return made


def _timed(build: Build, folder: Path) -> Built:
    folder.mkdir(parents=True)
    start = time.perf_counter()
    got = attempt(partial(build, folder))
    seconds = time.perf_counter() - start
    return Built(folder, seconds, got if isinstance(got, Trouble) else None)


def _line(key: Key, built: Built) -> str:
    what = f"{key[0]}, {key[1]}"
    if built.trouble:
        return f"{what}: {built.trouble.status}: {built.trouble.note}"
    return f"{what}: compiled in {built.seconds:.1f} s"
