"""Builds for the tests of `bench`'s processes, which import this module and no TVM."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from tvm_winograd.errors import UnsupportedError


@dataclass(frozen=True)
class Writes:
    """Leaves its process's id in a file, or refuses."""

    name: str
    refusal: str = ""

    def __call__(self, folder: Path) -> None:
        if self.refusal:
            raise UnsupportedError(self.refusal)
        (folder / self.name).write_text(str(os.getpid()))


@dataclass(frozen=True)
class FillsTheDisk:
    """What it writes does not fit."""

    def __call__(self, folder: Path) -> None:
        with open("/dev/full", "w") as full:
            full.write("x")


@dataclass(frozen=True)
class Hangs:
    """As a compiler does: no exception of Python's ends it."""

    def __call__(self, folder: Path) -> None:
        while True:
            try:
                time.sleep(60)
            except BaseException:
                continue


@dataclass(frozen=True)
class Dies:
    """Its process ends; only the first time if there is a file to note that in."""

    before: Path | None = None

    def __call__(self, folder: Path) -> None:
        if self.before is None or not self.before.exists():
            if self.before:
                self.before.touch()
            os._exit(1)
