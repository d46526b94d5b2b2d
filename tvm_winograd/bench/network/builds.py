"""Networks compiled in processes of their own, all of them before anything is measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import as_completed
from pathlib import Path

from tvm_winograd.measure.builds import Build, Builders, Built

from .network import Subject

Key = tuple[Subject, str]  # and the name of a provider


def build_all(
    builds: Mapping[Key, Build],
    scratch: Path,
    workers: int,
    progress: Callable[[str], None] = lambda text: None,
) -> dict[Key, Built]:
    """Runs all builds, `workers` at a time, each in a folder of its own in `scratch`."""
    made: dict[Key, Built] = {}
    with Builders(scratch, workers) as builders:
        started = {key: builders.submit(build) for key, build in builds.items()}
        for future in as_completed(started.values()):
            for key in (key for key, mine in started.items() if mine is future):
                made[key] = builders.built(builds[key])
                progress(_line(key, made[key]))
    return made


def _line(key: Key, built: Built) -> str:
    what = f"{key[0]}, {key[1]}"
    if built.trouble:
        return f"{what}: {built.trouble.status}: {built.trouble.note}"
    return f"{what}: compiled in {built.seconds:.1f} s"
