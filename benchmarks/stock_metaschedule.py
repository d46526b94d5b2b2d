"""MetaSchedule's own search over TVM's direct convolution: the peer `tvm-metaschedule`.

    python benchmarks/stock_metaschedule.py --trials 64 --out DIR [--jobs 4] SPEC...

Each convolution (ConvSpec.key()) gets a process, `--jobs` at a time: they build in parallel and
measure one after the other, under a lock in DIR. The best schedule of each is a record in DIR,
which `tvm-winograd bench conv --stock DIR` reads; it is written after every round of candidates. A
convolution that has one of as many trials is passed by.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from common import exit_code

from tvm_winograd.bench.conv.stock import read_record, record_path, write_record
from tvm_winograd.bench.conv.stock_search import local_runner, search
from tvm_winograd.measure.conditions import find_gpu
from tvm_winograd.shapes import ConvSpec, Epilogue


def one(args: argparse.Namespace, spec: ConvSpec, epilogue: Epilogue) -> None:
    gpu, name = find_gpu()
    runner, keep = local_runner(), partial(write_record, args.out)
    record = search(
        spec, epilogue, gpu.arch, name, args.trials, args.out, runner, args.workers, keep
    )
    path = record_path(args.out, spec, epilogue)
    print(f"{spec.key()}: {record.us:.1f} us, the best of {record.trials}: {path}", flush=True)


def trials_of(folder: Path, spec: ConvSpec, epilogue: Epilogue) -> int:
    there = record_path(folder, spec, epilogue).exists()
    return read_record(folder, spec, epilogue).trials if there else 0


def each_in_a_process(args: argparse.Namespace, specs: Sequence[ConvSpec]) -> int:
    def start(spec: ConvSpec) -> int:
        command = [sys.executable, __file__, "--trials", str(args.trials), "--out", str(args.out)]
        command += ["--epilogue", args.epilogue, "--workers", str(args.workers), spec.key()]
        return subprocess.run(command).returncode

    with ThreadPoolExecutor(args.jobs) as pool:
        return max(pool.map(start, specs))


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
    if len(todo) > 1:
        return each_in_a_process(args, todo)
    for spec in todo:
        one(args, spec, epilogue)
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
