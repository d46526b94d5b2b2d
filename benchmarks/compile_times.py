"""How long the commands that users wait for take, with and without kept kernels.

    python benchmarks/compile_times.py [--models resnet18,resnet50] --out rows.json

Each command runs in a process of its own, from its start to its end: wall time and processor time
(of all threads and children). "cold": no kernel is kept from before; "warm": it ran just before.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from common import exit_code, progress

from tvm_winograd.cli.common import print_table
from tvm_winograd.errors import BuildError
from tvm_winograd.gpu import host_cpu
from tvm_winograd.measure import provenance
from tvm_winograd.measure.provenance import Provenance
from tvm_winograd.measure.row_files import RowKind

_IMPORT = "import tvm"


@dataclass(frozen=True)
class Row(Provenance):
    """One command, run once."""

    command: str
    kept: str  # "cold", "warm", or "" where nothing is kept
    wall_s: float
    cpu_s: float
    cores: int


ROWS = RowKind(Row, lambda row: (row.command, row.kept), lambda new, old: True)


def main() -> None:
    args = arguments()
    shared = asdict(provenance.collect(host_cpu()))
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for command, kept, words in cases(args.models.split(","), Path(folder)):
            progress(f"{command} {kept}")
            wall, cpu = timed(words, Path(folder, "kernels"))
            cores = os.cpu_count() or 1
            rows.append(Row(command, kept, round(wall, 2), round(cpu, 2), cores, **shared))
            Path(args.out).write_text(ROWS.as_json(rows), encoding="utf-8")
    table = [[r.command, r.kept, f"{r.wall_s:.1f}", f"{r.cpu_s:.1f}"] for r in rows]
    print_table(f"{shared['gpu']}, {os.cpu_count()} cores", ["command", "", "s", "CPU s"], table)


def cases(models: list[str], folder: Path) -> list[tuple[str, str, list[str]]]:
    """(command, kept, words of the process)."""
    ours = [sys.executable, "-m", "tvm_winograd"]
    found = [("python -c 'import tvm'", "", [sys.executable, "-c", _IMPORT])]
    for model in models:
        for target in (["--target", "cuda", "--arch", "sm_90"], ["--target", "llvm"]):
            words = ["compile", model, *target]
            for kept in ("cold", "warm"):
                output = ["-o", str(folder / f"{model}-{target[1]}")]
                found.append((" ".join(words), kept, [*ours, *words, *output]))
    show = ["show", models[0], "--target", "cuda", "--arch", "sm_90", "--what", "config"]
    return [*found, (" ".join(show), "", [*ours, *show])]


def timed(words: list[str], kernels: Path) -> tuple[float, float]:
    """(wall, processor) seconds of a process.

    Raises:
        BuildError: it failed.
    """
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    environment = os.environ | {"TVM_WINOGRAD_CACHE": str(kernels)}
    run = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if run.returncode:
        raise BuildError(f"{' '.join(words)} failed:\n{run.stderr}")
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", default="resnet18,resnet50")
    parser.add_argument("--out", required=True, help="a .json file of rows to write")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(exit_code(main))
