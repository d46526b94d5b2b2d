"""MetaSchedule's own search over TVM's direct convolution: the peer `tvm-metaschedule`.

    python benchmarks/stock_metaschedule.py --trials 64 --out DIR [--jobs 4] SPEC...

Each convolution (ConvSpec.key()) gets a process, `--jobs` at a time: they build in parallel and
measure one after the other, under a lock in DIR. The best schedule of each is a record in DIR,
which `tvm-winograd bench conv --stock DIR` reads; it is written after every round of candidates. A
convolution that has one of as many trials is passed by.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from common import exit_code, progress

from tvm_winograd.bench.conv.stock import read_record, record_path, write_record
from tvm_winograd.bench.conv.stock_search import Wanted, local_runner, search
from tvm_winograd.measure.builds import Built, build_all
from tvm_winograd.measure.conditions import find_gpu
from tvm_winograd.shapes import ConvSpec, Epilogue

HOURS = 24 * 3600.0  # a search may take


@dataclass(frozen=True)
class Search:
    """A search in a process of `measure.builds`; its record goes to `out`."""

    spec: ConvSpec
    epilogue: Epilogue
    trials: int
    out: Path
    workers: int

    def __call__(self, folder: Path) -> None:
        gpu, name = find_gpu()
        runner, keep = local_runner(), partial(write_record, self.out)
        wanted = Wanted(self.spec, self.epilogue, gpu.arch, name, self.trials)
        record = search(wanted, self.out, runner, self.workers, keep)
        path = record_path(self.out, self.spec, self.epilogue)
        best = f"{record.us:.1f} us, the best of {record.trials}"
        print(f"{self.spec.key()}: {best}: {path}", flush=True)


def trials_of(folder: Path, spec: ConvSpec, epilogue: Epilogue) -> int:
    there = record_path(folder, spec, epilogue).exists()
    return read_record(folder, spec, epilogue).trials if there else 0


def finished(spec: ConvSpec, built: Built) -> None:
    if built.trouble:
        progress(f"{spec.key()}: {built.trouble.status}: {built.trouble.note}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("specs", metavar="SPEC", nargs="+")
    parser.add_argument("--epilogue", default="none")
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--jobs", type=int, default=4, help="convolutions at a time")
    parser.add_argument("--workers", type=int, default=4, help="builders of each")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    epilogue = Epilogue.from_key(args.epilogue)
    specs = [ConvSpec.from_key(text) for text in args.specs]
    todo = [spec for spec in specs if trials_of(args.out, spec, epilogue) < args.trials]
    if todo:
        find_gpu()
    how = args.trials, args.out, args.workers
    searches = {spec: Search(spec, epilogue, *how) for spec in todo}
    with tempfile.TemporaryDirectory() as scratch:
        made = build_all(searches, Path(scratch), args.jobs, finished, longest=HOURS)
    return 1 if any(built.trouble for built in made.values()) else 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
