"""Implicit GEMM on this GPU, beside cuDNN and cuBLAS through torch, in one run.

    python benchmarks/gemm.py [--batch 32] [--configs [N]] [--algorithm gemm] [--json rows.json]

All distinct convolutions of ResNet-18 and ResNet-50 that Winograd does not take, at one batch: our
default config, with --configs the first N (all) worth trying; torch's conv2d (cuDNN's benchmark
mode) and, for 1x1, torch.matmul of the same size (K x C times C x P; cuBLAS); TF32 off.

Outputs are poisoned and compared with float64 first. Times are medians in a CUDA graph, L2 warm,
weights packed outside. Candidates are compiled by all cores while earlier ones are measured.
Needs torch with CUDA.
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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from common import exit_code, save, start

from tvm_winograd import ConvSpec, Epilogue
from tvm_winograd.choose.select import Choice, kernels_of
from tvm_winograd.cli.common import print_table
from tvm_winograd.codegen import build
from tvm_winograd.gpu import Gpu, gpu_for, make_target
from tvm_winograd.measure.cuda_timing import CudaTimer, Plan
from tvm_winograd.passes.apply_schedules import schedule_function
from tvm_winograd.truth.tolerances import tolerance

STAGES = ((64, 56), (128, 28), (256, 14), (512, 7))  # width and map of a ResNet's stages
BRIEF = Plan(warmup_ms=15.0, total_ms=50.0)  # for one of many candidates


@dataclass(frozen=True)
class Row:
    """One way to compute one convolution. Times in microseconds."""

    spec: str
    provider: str
    us: float
    spread_us: float
    tflops: float
    error: float | None  # relative Frobenius, against float64; not of cuBLAS
    config: str = ""


def layers(n: int) -> list[ConvSpec]:
    """The distinct convolutions of ResNet-18 and ResNet-50 but 3x3 with stride 1."""
    out = [ConvSpec(n, 3, 224, 224, 64, 7, 7, 2, (3, 3, 3, 3))]

    def add(c: int, size: int, k: int, taps: int, stride: int = 1) -> None:
        out.append(ConvSpec(n, c, size, size, k, taps, taps, stride, (taps // 2,) * 4))

    for width, size in STAGES:
        first = width == STAGES[0][0]
        before, stride = (size, 1) if first else (2 * size, 2)  # the map before the stage
        c = width if first else 2 * width
        add(c, before, width, 1)
        if not first:
            for narrow in (width // 2, width):  # of ResNet-18, of ResNet-50
                add(narrow, before, width, 3, stride)
            add(width // 2, before, width, 1, stride)
        add(width, size, 4 * width, 1)
        add(c, before, 4 * width, 1, stride)
        add(4 * width, size, width, 1)
    return list(dict.fromkeys(out))


def compile_candidate(
    spec: ConvSpec, epilogue: Epilogue, algorithm: str, config: Any, arch: str, path: Path
) -> Path:
    """Runs in a worker process, to which no kernel can be sent; returns the library's path."""
    gpu = gpu_for(arch)
    (kernel,) = kernels_of(algorithm, gpu)
    choice = Choice(kernel, config, "explicit", "benchmark")
    with make_target(gpu):
        done, _ = schedule_function(kernel.prim_func(spec, epilogue, config), choice, gpu)
    made = build.build(done, gpu, pipeline="tir", pass_config=kernel.pass_config)
    return build.export(made, path)


def candidates(spec: ConvSpec, algorithm: str, gpu: Gpu, most: int) -> list[Choice]:
    """The default config and others worth trying, `most` in all."""
    (kernel,) = kernels_of(algorithm, gpu)
    if kernel.supports(spec, Epilogue(), gpu):
        return []
    found = kernel.configs(spec, gpu)[:most]
    return [Choice(kernel, config, "explicit", "benchmark") for config in found]


class Layer:
    """One convolution's arrays on the GPU, and what is measured with them."""

    def __init__(self, spec: ConvSpec, epilogue: Epilogue, timer: CudaTimer, plan: Plan) -> None:
        import torch

        self.spec, self.epilogue, self.timer, self.plan = spec, epilogue, timer, plan
        generator = torch.Generator("cuda").manual_seed(0)

        def draw(*shape: int) -> Any:
            return torch.randn(shape, device="cuda", generator=generator)

        self.x, fan_in = draw(*spec.input_shape), spec.c // spec.groups * spec.r * spec.s
        self.w = draw(*spec.weight_shape) / fan_in**0.5
        self.bias = draw(spec.k) if epilogue.bias else None
        self.residual = draw(*spec.output_shape) if epilogue.residual else None
        self.want = self.convolved("double")

    def convolved(self, kind: str = "float") -> Any:
        """torch's result, the epilogue included."""
        import torch

        x, w, bias, residual = (
            None if t is None else getattr(t, kind)()
            for t in (self.x, self.w, self.bias, self.residual)
        )
        padding = self.spec.padding[0]  # these layers are padded alike on all sides
        y = torch.nn.functional.conv2d(x, w, bias, self.spec.stride, padding)
        y = y if residual is None else y + residual
        applied = self.epilogue.applied
        return applied.torch(torch.nn.functional, y) if applied else y

    def ours(self, choice: Choice, library: Path, provider: str) -> Row:
        import torch
        import tvm
        import tvm_ffi

        packed = choice.kernel.pack_weights(self.w.cpu().numpy(), self.spec, choice.config)
        out = torch.full(self.spec.output_shape, float("nan"), device="cuda")
        given = [self.x, torch.from_numpy(packed).cuda(), self.bias, self.residual, out]
        arguments = [tvm_ffi.from_dlpack(t) for t in given if t is not None]
        main = tvm.runtime.load_module(str(library))["main"]
        limit = tolerance(self.spec, choice.algorithm)
        knobs = json.dumps(asdict(choice.config))
        return self._row(provider, lambda: main(*arguments), lambda: out, limit, knobs)

    def peers(self) -> Iterator[Row]:
        import torch

        result: list[Any] = [None]

        def conv() -> None:
            result[0] = self.convolved()

        yield self._row("cuDNN", conv, lambda: result[0], 1.0)
        if self.spec.r * self.spec.s == 1:
            c, p = self.spec.c, self.spec.n * self.spec.oh * self.spec.ow
            a, b = self.w.reshape(-1, c), torch.randn(c, p, device="cuda")
            out = torch.empty(self.spec.k, p, device="cuda")
            call = lambda: torch.matmul(a, b, out=out)  # noqa: E731
            yield self._row("cuBLAS", call, lambda: out, None)

    def _row(
        self,
        provider: str,
        call: Callable[[], Any],
        output: Callable[[], Any],
        limit: float | None,
        config: str = "",
    ) -> Row:
        """Checked, then timed.

        Raises:
            SystemExit: the result errs more than `limit`.
        """
        error = None
        with self.timer.current():
            call()
        self.timer.synchronize()
        if limit is not None:
            error = float((output().double() - self.want).norm() / self.want.norm())
            if not error <= limit:
                raise SystemExit(f"{self.spec.key()}: {provider} {config} errs {error:.2e}")
        timing = self.timer.measure(call, plan=self.plan)
        rate = self.spec.flops / timing.us / 1e6
        return Row(self.spec.key(), provider, timing.us, timing.spread_us, rate, error, config)


def measured(
    specs: list[ConvSpec], args: argparse.Namespace, gpu: Gpu, timer: CudaTimer, folder: Path
) -> Iterator[list[Row]]:
    """The rows of each convolution: ours, the default first, then peers."""
    import torch

    torch.cuda.set_stream(torch.cuda.ExternalStream(timer.handle))
    epilogue, plan = Epilogue.from_key(args.epilogue), BRIEF if args.configs > 1 else Plan()
    spawn = multiprocessing.get_context("spawn")  # a forked child would share the CUDA context
    with ProcessPoolExecutor(os.cpu_count(), spawn) as pool:
        jobs: list[tuple[ConvSpec, list[tuple[Choice, Future[Path]]]]] = []
        for i, spec in enumerate(specs):
            jobs.append((spec, []))
            for j, choice in enumerate(candidates(spec, args.algorithm, gpu, args.configs)):
                path = folder / f"{i}-{j}.so"
                task = (spec, epilogue, choice.algorithm, choice.config, gpu.arch, path)
                future = pool.submit(compile_candidate, *task)
                jobs[-1][1].append((choice, future))
        for spec, found in jobs:
            layer = Layer(spec, epilogue, timer, plan)
            rows = [
                layer.ours(choice, future.result(), "config" if j else "default")
                for j, (choice, future) in enumerate(found)
            ]
            yield [*rows, *layer.peers()]


def summary(rows: list[Row]) -> list[str]:
    """One line of the table: default, best, peers, and what the two of ours are."""
    own = [r for r in rows if r.config]
    peers = {r.provider: r for r in rows if not r.config}
    spec = ConvSpec.from_key(rows[0].spec)
    title = f"{spec.c}, {spec.h}² -> {spec.k}, {spec.r}x{spec.s}/{spec.stride}"

    def cell(row: Row | None) -> str:
        return f"{row.us:.1f} ({row.tflops:.1f})" if row else ""

    best = min(own, key=lambda r: r.us, default=None)
    shown = [own[0] if own else None, best, peers.get("cuDNN"), peers.get("cuBLAS")]
    error = f"{own[0].error:.1e}" if own else ""
    return [title, *map(cell, shown), error, *(knobs(r.config) if r else "" for r in shown[:2])]


def knobs(config: str) -> str:
    """What differs most between configs."""
    c = json.loads(config)
    tile = f"{c['bk']}x{c['bp']} of {c['tk']}x{c['tp']}, {c['bc']}x{c['buffers']}"
    return f"{tile}, {c['inputs']}, {c['parts']}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--configs", type=int, nargs="?", const=100, default=1, metavar="N")
    parser.add_argument("--algorithm", choices=("gemm", "im2col"), default="gemm")
    parser.add_argument("--epilogue", default="none", help="e.g. bias+residual+relu")
    parser.add_argument("--only", default="", help="layers whose key contains this, e.g. r7s7")
    parser.add_argument("--json", type=Path, metavar="FILE", help="rows, written as they come")
    args = parser.parse_args()
    gpu, where = start()
    rows: list[Row] = []
    lines = []
    specs = [s for s in layers(args.batch) if args.only in s.key()]
    with tempfile.TemporaryDirectory() as folder, CudaTimer() as timer:
        for found in measured(specs, args, gpu, timer, Path(folder)):
            rows += found
            lines.append(summary(found))
            print("  ".join(lines[-1]), file=sys.stderr)
            save(args.json, where, rows)
    columns = ["layer", "default", "best", "cuDNN", "cuBLAS", "error", "default is", "best is"]
    print_table(f"{where['gpu']}, batch {args.batch}: us (TFLOP/s)", columns, lines)


if __name__ == "__main__":
    sys.exit(exit_code(main))
