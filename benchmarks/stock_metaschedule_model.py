"""MetaSchedule's own search over whole networks: the peer `tvm-metaschedule` of `bench model`.

    python benchmarks/stock_metaschedule_model.py resnet18 --batch 1,32 --trials 1000 --out DIR

One network after the other; candidates are built in parallel and measured one at a time. Each
network with a batch has a folder in DIR, which `tvm-winograd bench model --stock DIR` reads; a
search that is started again adds to it. Functions that no candidate was found for are left to
dlight's default schedules.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from common import exit_code

from tvm_winograd.bench.conv.stock_search import local_runner
from tvm_winograd.bench.network.stock_search import search
from tvm_winograd.frontend import load_model
from tvm_winograd.measure.conditions import find_gpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", metavar="MODEL", nargs="+", help="as for `bench model`")
    parser.add_argument("--batch", default="1", metavar="N,N", help="images per run (default 1)")
    parser.add_argument("--weights", help=".safetensors or .npz (default: seeded random)")
    parser.add_argument("--trials", type=int, default=1000, help="of a network, all functions")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="builders")
    args = parser.parse_args()
    gpu, _ = find_gpu()
    runner = local_runner()
    for name in args.models:
        for batch in map(int, args.batch.split(",")):
            start = time.perf_counter()
            model = load_model(name, batch=batch, weights=args.weights)
            found = search(model, gpu, args.trials, args.out, runner, args.workers)
            seconds = time.perf_counter() - start
            folder, good, total = found
            print(f"{folder}: {good} of {total} functions in {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    sys.exit(exit_code(main))
