"""MobileNetV2's depthwise layers, pooling and dense heads on this GPU, beside torch and dlight.

    python benchmarks/depthwise.py [--batch 1,32,128] [--configs [N]] [--dtype float32]
                                   [--only dense] [--without-dlight] [--json rows.json]

Depthwise: our default config, with --configs the first N (all) worth trying; the direct
convolution under TVM's dlight; torch (cuDNN's benchmark mode). Functions: as our compiler schedules
them, under dlight alone, torch (cuDNN, cuBLAS). TF32 off.

Outputs are poisoned and compared with torch's float64 first. Times are medians in a CUDA graph, L2
warm; GB/s count input, weights and output once. Candidates are compiled by all cores while earlier
ones are measured. Needs torch with CUDA.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import exit_code, save, start
from depthwise_cases import (
    DLIGHT,
    FUNCTIONS,
    LAYERS,
    OURS,
    Job,
    compile_job,
    kernel_of,
    torch_conv,
    torch_function,
)

from tvm_winograd import ConvSpec
from tvm_winograd.cli.common import print_table
from tvm_winograd.gpu import Gpu
from tvm_winograd.measure.cuda_timing import CudaTimer, Plan
from tvm_winograd.schedules.base.kernel import config_dict
from tvm_winograd.truth.tolerances import TOLERANCES

BRIEF = Plan(warmup_ms=10.0, total_ms=40.0)  # for one of many candidates, and what is slow


@dataclass(frozen=True)
class Row:
    """One way to compute one layer or function. Times in microseconds."""

    name: str
    batch: int
    provider: str  # "default", "config", "dlight" or "torch"
    us: float
    spread_us: float
    gb_per_s: float
    error: float  # relative Frobenius, against float64
    detail: str = ""  # the config, or the schedule's name


class Case:
    """One layer or function at one batch: its arrays on the GPU, and what is measured."""

    def __init__(self, name: str, batch: int, spec: ConvSpec | None, timer: CudaTimer) -> None:
        import torch

        self.name, self.batch, self.spec, self.timer = name, batch, spec, timer
        generator = torch.Generator("cuda").manual_seed(0)
        shapes = FUNCTIONS[name](batch) if spec is None else _shapes(spec)
        draw = [torch.randn(s, device="cuda", generator=generator) for s in shapes]
        kind = torch.float32 if spec is None else getattr(torch, spec.dtype)
        self.inputs = [t if t.dim() == 1 else t.to(kind) for t in draw]  # a bias stays float32
        self.peer = torch_function(name) if spec is None else torch_conv(spec)
        self.want = self.peer(*(t.double() for t in self.inputs))
        self.limit = TOLERANCES["float32" if spec is None else spec.out_dtype, "direct"]

    def ours(self, job: Job, library: Path, detail: str, provider: str) -> Row:
        import torch
        import tvm
        import tvm_ffi

        arrays = list(self.inputs)
        if self.spec is not None:
            kernel, weights = kernel_of(job.kernel), arrays[1].cpu().numpy()
            config = kernel.make_config(json.loads(job.config))
            arrays[1] = torch.from_numpy(kernel.pack_weights(weights, self.spec, config)).cuda()
        out = torch.full(self.want.shape, float("nan"), device="cuda", dtype=arrays[0].dtype)
        arguments = [tvm_ffi.from_dlpack(t) for t in (*arrays, out)]
        main = tvm.runtime.load_module(str(library))["main"]
        plan = Plan() if provider == "default" else BRIEF
        return self._row(provider, lambda: main(*arguments), lambda: out, detail, plan)

    def torch(self) -> Row:
        result: list[Any] = [None]

        def call() -> None:
            result[0] = self.peer(*self.inputs)

        return self._row("torch", call, lambda: result[0], "", Plan())

    def _row(
        self,
        provider: str,
        call: Callable[[], Any],
        output: Callable[[], Any],
        detail: str,
        plan: Plan,
    ) -> Row:
        """Checked, then timed.

        Raises:
            SystemExit: a result of ours errs more than the limit.
        """
        with self.timer.current():
            call()
        self.timer.synchronize()
        error = float((output().double() - self.want).norm() / self.want.norm())
        if provider != "torch" and not error <= self.limit:
            raise SystemExit(f"{self.name}, batch {self.batch}: {provider} {detail} errs {error}")
        moved = sum(t.numel() * t.element_size() for t in (*self.inputs, output()))
        timing = self.timer.measure(call, plan=plan)
        rate = moved / timing.us / 1e3
        return Row(
            self.name, self.batch, provider, timing.us, timing.spread_us, rate, error, detail
        )


def _shapes(spec: ConvSpec) -> list[tuple[int, ...]]:
    return [spec.input_shape, spec.weight_shape, (spec.k,)]


def jobs_of(name: str, batch: int, args: argparse.Namespace, gpu: Gpu) -> list[tuple[str, Job]]:
    """(provider, job) of one layer (its key) or function."""
    if name in FUNCTIONS:
        ways = [("default", False)] + [("dlight", True)] * args.dlight
        return [(provider, Job(name, batch, gpu.arch, dlight=d)) for provider, d in ways]
    spec = ConvSpec.from_key(name)
    kernel = kernel_of(OURS)
    found = kernel.configs(spec, gpu)[: args.configs]
    texts = [json.dumps(config_dict(c)) for c in found]
    out = [
        ("config" if i else "default", Job(name, batch, gpu.arch, OURS, text))
        for i, text in enumerate(texts)
    ]
    return out + [("dlight", Job(name, batch, gpu.arch, DLIGHT, "{}"))] * args.dlight


def measured(args: argparse.Namespace, gpu: Gpu, timer: CudaTimer, folder: Path) -> Iterator:
    """The rows of each layer and function: ours, the default first, dlight, torch."""
    import torch

    torch.cuda.set_stream(torch.cuda.ExternalStream(timer.handle))
    cases: list[tuple[str, int, ConvSpec | None]] = []
    for n in args.batch:
        specs = [
            ConvSpec(n, c, h, h, c, stride=s, groups=c, dtype=args.dtype) for c, h, s in LAYERS
        ]
        cases += [(spec.key(), n, spec) for spec in specs]
        cases += [(name, n, None) for name in FUNCTIONS]
    spawn = multiprocessing.get_context("spawn")  # a forked child would share the CUDA context
    with ProcessPoolExecutor(os.cpu_count(), spawn) as pool:
        pending: list[tuple[Any, list[tuple[str, Job, Future]]]] = []
        for i, case in enumerate(c for c in cases if args.only in c[0]):
            made = []
            for j, (provider, job) in enumerate(jobs_of(case[0], case[1], args, gpu)):
                future = pool.submit(compile_job, job, folder / f"{i}-{j}.so")
                made.append((provider, job, future))
            pending.append((case, made))
        for (name, n, spec), made in pending:
            case = Case(name, n, spec, timer)
            yield [case.ours(job, *f.result(), provider) for provider, job, f in made] + [
                case.torch()
            ]


def summary(rows: list[Row]) -> list[str]:
    """One line of the table: default, best config, dlight, torch, and how ours was made."""
    first: dict[str, Row] = {}
    for row in rows:
        first.setdefault(row.provider, row)
    own = [r for r in rows if r.provider in ("default", "config")]
    best = min(own, key=lambda r: r.us)
    name = rows[0].name
    if name not in FUNCTIONS:
        spec = ConvSpec.from_key(name)
        name = f"{spec.c}, {spec.h}², {spec.r}x{spec.s}/{spec.stride}"

    def cell(row: Row | None) -> str:
        return f"{row.us:.1f} ({row.gb_per_s:.0f})" if row else ""

    shown = [first["default"], best, first.get("dlight"), first["torch"]]
    detail = best.detail if len(own) > 1 else first["default"].detail
    return [str(rows[0].batch), name, *map(cell, shown), f"{shown[0].error:.1e}", detail]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    batches = lambda text: [int(n) for n in text.split(",")]  # noqa: E731
    parser.add_argument("--batch", type=batches, default=[1, 32, 128], metavar="N,...")
    parser.add_argument("--configs", type=int, nargs="?", const=100, default=1, metavar="N")
    parser.add_argument("--dtype", choices=("float32", "float16"), default="float32")
    parser.add_argument("--only", default="", help="names that contain this, e.g. h7w7 or dense")
    parser.add_argument("--without-dlight", dest="dlight", action="store_false")
    parser.add_argument("--json", type=Path, metavar="FILE", help="rows, written as they come")
    args = parser.parse_args()
    gpu, where = start()
    rows: list[Row] = []
    lines = []
    with tempfile.TemporaryDirectory() as folder, CudaTimer() as timer:
        for found in measured(args, gpu, timer, Path(folder)):
            rows += found
            lines.append(summary(found))
            print("  ".join(lines[-1]), file=sys.stderr)
            save(args.json, where, rows)
    columns = ["n", "layer", "default", "best", "dlight", "torch", "error", "best is"]
    print_table(f"{where['gpu']}, {args.dtype}: us (GB/s)", columns, lines)


if __name__ == "__main__":
    sys.exit(exit_code(main))
