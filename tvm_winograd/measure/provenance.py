"""Where and with what a result was measured: what a table's rows say beside the numbers."""

from __future__ import annotations

import datetime
import subprocess
from dataclasses import dataclass
from pathlib import Path

from .. import __version__, env
from ..deploy import libraries
from ..errors import UnsupportedError
from ..gpu import Cpu, Hardware
from ..tables.lookup import MOCK


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """The columns of a row that say where and with what it was measured; a session shares them.

    A kind of rows inherits them, as its last columns.
    """

    gpu: str = ""
    arch: str = ""
    driver: str = ""
    tvm: str = ""
    version: str = ""  # of this package
    commit: str = ""
    date: str = ""  # ISO, UTC


def collect(hardware: Hardware, mock: bool = False) -> Provenance:
    """Describes this machine, whose device must be `hardware`.

    Raises:
        UnsupportedError: there is no such GPU here.
    """
    gpu, driver = (MOCK, "") if mock else _device(hardware)
    now = datetime.datetime.now(datetime.timezone.utc)
    return Provenance(
        gpu=gpu,
        arch=hardware.arch,
        driver=driver,
        tvm=libraries.tvm_version(),
        version=__version__,
        commit=_commit(),
        date=now.strftime("%Y-%m-%d"),
    )


def _device(hardware: Hardware) -> tuple[str, str]:
    """Finds (name, driver version)."""
    if isinstance(hardware, Cpu):
        return hardware.cpu, ""
    gpus = env.collect()["gpus"]
    if not gpus or gpus[0]["arch"] != hardware.arch:
        found = f"the first GPU here is {gpus[0]['name']}" if gpus else "there is no GPU here"
        raise UnsupportedError(
            f"tuning for {hardware.arch} measures on such a GPU, and {found}: tune there "
            f"({gpus[0]['arch'] if gpus else 'or --target llvm'}), or try it with --mock"
        )
    return gpus[0]["name"], _driver_version()


def _driver_version() -> str:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _commit() -> str:
    """Names the commit of this package's checkout, "+" behind it if files were changed since; ""
    if the package is installed."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return ""
    try:
        name = ["git", "-C", str(root), "describe", "--always", "--dirty=+", "--abbrev=10"]
        run = subprocess.run([*name, "--exclude=*"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return run.stdout.strip()
