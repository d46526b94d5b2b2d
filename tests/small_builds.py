"""Builds for the tests of `bench`'s processes, which import this module and no TVM."""

from __future__ import annotations

import os
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
class Dies:
    """Its process ends; only the first time if there is a file to note that in."""

    before: Path | None = None

    def __call__(self, folder: Path) -> None:
        if self.before is None or not self.before.exists():
            if self.before:
                self.before.touch()
            os._exit(1)
