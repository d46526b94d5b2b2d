"""What a range of batches costs: each size in its bucket beside an artifact for that size alone.

    python benchmarks/batches.py resnet50 --batch 1-32 --sizes 1,2,3,8,9,17,31,32 [--target llvm]

Medians of runs from an idle device to an idle device, of an input that is on it, in ms; `bucket`
is the size that ran, `parameters` and `planned` what the range and the single size keep on the
device.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np
from common import exit_code

import tvm_winograd
from tvm_winograd.cli.common import print_table
from tvm_winograd.codegen.artifact import Artifact
from tvm_winograd.deploy.batches import parse_batch, parse_buckets
from tvm_winograd.errors import InputError
from tvm_winograd.frontend import load_model
from tvm_winograd.frontend.weights import random_images
from tvm_winograd.measure.conditions import find_gpu

SIZES = (1, 2, 3, 8, 9, 17, 31, 32)


def main() -> None:
    args = arguments()
    low, high = parse_batch(args.batch)
    sizes = parse_buckets(args.sizes) if args.sizes else [n for n in SIZES if low <= n <= high]
    if not sizes or not low <= min(sizes) <= max(sizes) <= high:
        raise InputError(f"--sizes {args.sizes}: sizes from {low} to {high} (--batch) are needed")
    arch = find_gpu(args.arch or "auto")[0].arch if args.target == "cuda" else None
    model = load_model(args.model, batch=high)
    options = {"target": args.target, "arch": arch, "ptx": False, "progress": note}
    columns = ["batch", "bucket", "range ms", "alone ms", "ratio"]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        varying = tvm_winograd.compile(
            model, batch=(low, high), output=Path(folder, "range"), **options
        )
        runner = varying.load()
        for size in sizes:
            alone = tvm_winograd.compile(
                model, batch=size, output=Path(folder, str(size)), **options
            )
            shape = (size, *model.inputs[0].shape[1:])
            x = random_images(np.random.default_rng(1), shape)
            ours, theirs = (
                statistics.median(r.time(x, repeats=args.repeats)) * 1e3
                for r in (runner, alone.load())
            )
            bucket = runner.batches.bucket(size)
            rows.append([size, bucket, f"{ours:.3f}", f"{theirs:.3f}", f"{ours / theirs:.2f}"])
        print(f"range: {kept(varying)}; the last size alone: {kept(alone)}")
    print_table(f"{args.model}, --batch {args.batch}, {runner.device}", columns, rows)


def kept(artifact: Artifact) -> str:
    manifest = artifact.manifest
    planned = sum(module["planned_bytes"] for module in manifest["modules"])
    return f"parameters {mib(manifest['params']['bytes'])}, planned {mib(planned)}"


def mib(count: int) -> str:
    return f"{count / 2**20:.0f} MiB"


def note(text: str) -> None:
    print(text, file=sys.stderr)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--batch", default="1-32")
    parser.add_argument("--sizes", help=f"of {', '.join(map(str, SIZES))} those in --batch")
    parser.add_argument("--target", choices=("llvm", "cuda"), default="cuda")
    parser.add_argument("--arch")
    parser.add_argument("--repeats", type=int, default=50)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(exit_code(main))
