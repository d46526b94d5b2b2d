"""Every kernel's default on 200 convolutions: what the selector's estimates are held against.

    python benchmarks/selector.py --out grid.jsonl

A line a (convolution, kernel): microseconds in a CUDA graph (median, L2 warm, weights packed
outside), checked against float64 on poisoned output first. Every second convolution is held out:
estimates are fitted to the others only (fit_estimates.py). Kernels are compiled by all cores while
earlier ones are measured. What is in the file already is not measured again, unless the kernel's
default has changed since: of a convolution and kernel the last line counts. Needs torch with CUDA.

`tests/test_selector_grid.py` reads the file in benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from common import exit_code

from tvm_winograd import ConvSpec, Epilogue
from tvm_winograd.choose.select import Choice
from tvm_winograd.codegen import build
from tvm_winograd.errors import TvmWinogradError
from tvm_winograd.gpu import Gpu, gpu_for, make_target
from tvm_winograd.measure import provenance
from tvm_winograd.measure.conditions import find_gpu
from tvm_winograd.measure.cuda_timing import CudaTimer, Plan
from tvm_winograd.passes.apply_schedules import schedule_function
from tvm_winograd.schedules import KERNELS
from tvm_winograd.schedules.base.kernel import Kernel, config_dict
from tvm_winograd.truth import peers, reference
from tvm_winograd.truth.tolerances import tolerance

EPILOGUE = Epilogue(bias=True, relu=True)
PLAN = Plan(warmup_ms=15.0, total_ms=40.0)
COUNT = 200
BATCHES = (1, 2, 4, 8, 16, 32, 64)
CHANNELS = (3, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
MAPS = (7, 8, 13, 14, 16, 19, 27, 28, 32, 50, 56, 64, 75, 112, 128, 224)
# (share of the grid, r = s, stride, dilation, groups)
FILTERS = (
    (45, 3, 1, 1, 1),
    (25, 1, 1, 1, 1),
    (10, 3, 2, 1, 1),
    (4, 1, 2, 1, 1),
    (5, 5, 1, 1, 1),
    (4, 7, 2, 1, 1),
    (3, 3, 1, 2, 1),
    (4, 3, 1, 1, 0),  # groups: depthwise, or of 8 channels
)
LEAST_FLOPS, MOST_FLOPS, MOST_BYTES = 1e7, 4e10, 3e8


def grid() -> list[ConvSpec]:
    """The convolutions, always the same ones; odd positions are held out."""
    rng, out = random.Random(2026), dict[ConvSpec, None]()
    shares = [share for share, *_ in FILTERS]
    while len(out) < COUNT:
        (_, r, stride, dilation, groups), n = (
            rng.choices(FILTERS, shares)[0],
            rng.choice(BATCHES),
        )
        c, k, size = rng.choice(CHANNELS), rng.choice(CHANNELS[1:]), rng.choice(MAPS)
        if groups == 0:
            c = k = max(c, 16)
            groups = rng.choice((c, c // 8))
        pad = r // 2 * dilation
        spec = ConvSpec(n, c, size, size, k, r, r, stride, (pad,) * 4, dilation, groups)
        if LEAST_FLOPS <= spec.flops * groups and spec.flops <= MOST_FLOPS:
            if spec.bytes <= MOST_BYTES:
                out[spec] = None
    return list(out)


def candidates(spec: ConvSpec, gpu: Gpu) -> list[tuple[Kernel, Any]]:
    """(kernel, its default config) of all that apply."""
    able = [k for k in KERNELS if k.target == "cuda" and not k.supports(spec, EPILOGUE, gpu)]
    return [(k, k.configs(spec, gpu)[0]) for k in able]


def read(path: Path) -> dict[str, dict[str, dict]]:
    """ConvSpec.key() -> kernel name -> its last row: spec, kernel, config, us, spread_us, error."""
    out: dict[str, dict[str, dict]] = {}
    for row in map(json.loads, path.read_text().splitlines()):
        if "spec" in row:  # not the first line, which says where
            out.setdefault(row["spec"], {})[row["kernel"]] = row
    return out


def missing(spec: ConvSpec, rows: dict[str, dict[str, dict]], gpu: Gpu) -> list[tuple[Kernel, Any]]:
    """The candidates that no row describes."""
    known = rows.get(spec.key(), {})
    return [(k, c) for k, c in candidates(spec, gpu) if not describes(known.get(k.name), k, c)]


def describes(row: dict | None, kernel: Kernel, config: Any) -> bool:
    """Whether a row is of this config; fields it is older than mean as before by default."""
    try:
        return row is not None and kernel.make_config(row["config"]) == config
    except TvmWinogradError:
        return False


def compiled(spec: ConvSpec, name: str, arch: str, path: Path) -> Path:
    """In a worker process, to which no kernel can be sent."""
    gpu = gpu_for(arch)
    kernel, config = next((k, c) for k, c in candidates(spec, gpu) if k.name == name)
    with make_target(gpu):
        func = kernel.prim_func(spec, EPILOGUE, config)
        done, _ = schedule_function(func, Choice(kernel, config, "", ""), gpu)
    return build.export(
        build.build(done, gpu, pipeline="tir", pass_config=kernel.pass_config), path
    )


class Problem:
    """A convolution's arrays on the GPU, zero-mean, and its float64 result."""

    def __init__(self, spec: ConvSpec) -> None:
        rng = np.random.default_rng(0)
        fan_in = spec.c // spec.groups * spec.r * spec.s
        self.spec = spec
        self.x = rng.standard_normal(spec.input_shape, "float32")
        self.w = rng.standard_normal(spec.weight_shape, "float32") / np.float32(fan_in**0.5)
        self.bias = rng.standard_normal(spec.k, "float32")
        y = peers.cuda_conv64(spec, self.x, self.w)
        self.want = reference.apply_epilogue(spec, EPILOGUE, y, self.bias, None)

    def measure(self, kernel: Kernel, config: Any, library: Path, timer: CudaTimer) -> dict:
        """Raises SystemExit if the result is wrong."""
        import tvm

        def on_gpu(array: np.ndarray) -> Any:
            return tvm.runtime.tensor(array, tvm.device("cuda", 0))

        out = on_gpu(np.full(self.spec.output_shape, np.nan, "float32"))
        packed = kernel.pack_weights(self.w, self.spec, config)
        arguments = [*map(on_gpu, (self.x, packed, self.bias)), out]
        main = tvm.runtime.load_module(str(library))["main"]
        with timer.current():
            main(*arguments)
        timer.synchronize()
        error = reference.relative_error(out.numpy(), self.want)
        if not error <= tolerance(self.spec, kernel.algorithm):
            raise SystemExit(f"{self.spec.key()}: {kernel.name} errs by {error:.2e}")
        timing = timer.measure(lambda: main(*arguments), plan=PLAN)
        us, spread = round(timing.us, 3), round(timing.spread_us, 3)
        return {"us": us, "spread_us": spread, "error": float(f"{error:.3e}")}


def measured(
    todo: list[tuple[ConvSpec, list[tuple[Kernel, Any]]]], gpu: Gpu, folder: Path
) -> Iterator[list[dict]]:
    """The rows of each convolution."""
    spawn = multiprocessing.get_context("spawn")  # a forked child would share the CUDA context
    with ProcessPoolExecutor(os.cpu_count(), spawn) as pool, CudaTimer() as timer:
        jobs: list[list[Future[Path]]] = []
        for i, (spec, able) in enumerate(todo):
            jobs.append(
                [
                    pool.submit(compiled, spec, k.name, gpu.arch, folder / f"{i}-{k.name}.so")
                    for k, _ in able
                ]
            )
        for (spec, able), futures in zip(todo, jobs, strict=True):
            problem, rows = Problem(spec), []
            for (kernel, config), future in zip(able, futures, strict=True):
                try:
                    found = problem.measure(kernel, config, future.result(), timer)
                except (TvmWinogradError, BrokenProcessPool) as error:
                    print(f"{spec.key()}: {kernel.name} is left out: {error}", file=sys.stderr)
                    continue
                about = {"spec": spec.key(), "kernel": kernel.name, "config": config_dict(config)}
                rows.append({**about, **found})
                future.result().unlink()
            yield rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="JSON lines")
    parser.add_argument("--part", default="0/1", metavar="I/N", help="each N-th convolution")
    args = parser.parse_args()
    part, parts = map(int, args.part.split("/"))
    build.ensure_cuda_codegen()
    gpu, _ = find_gpu()
    rows = read(args.out) if args.out.exists() else {}
    todo = [(spec, missing(spec, rows, gpu)) for spec in grid()[part::parts]]
    todo = [(spec, able) for spec, able in todo if able]
    with args.out.open("a") as file, tempfile.TemporaryDirectory() as folder:
        if not rows:
            file.write(json.dumps({"where": asdict(provenance.collect(gpu))}) + "\n")
        for new in measured(todo, gpu, Path(folder)):
            file.writelines(json.dumps(row) + "\n" for row in new)
            file.flush()
            for best in sorted(new, key=lambda row: row["us"])[:1]:
                print(f"{best['spec']}: {best['kernel']} {best['us']:.1f} us", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(exit_code(main))
