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
import sys
from pathlib import Path
from typing import Any

from common import cell, choice_of, exit_code, progress

from tvm_winograd import ConvSpec, Epilogue
from tvm_winograd.bench.conv.ours import Listed
from tvm_winograd.bench.conv.provider import PEER_LIMIT, Prepared
from tvm_winograd.bench.conv.rows import Row, Store
from tvm_winograd.bench.conv.run import Settings, measure
from tvm_winograd.bench.conv.session import opened
from tvm_winograd.bench.conv.torch import Torch
from tvm_winograd.bench.providers import pick
from tvm_winograd.choose.select import Choice, kernels_of
from tvm_winograd.cli.common import print_table
from tvm_winograd.gpu import Gpu
from tvm_winograd.measure.cuda_timing import Plan
from tvm_winograd.measure.problem import Problem
from tvm_winograd.truth import reference

STAGES = ((64, 56), (128, 28), (256, 14), (512, 7))  # width and map of a ResNet's stages
BRIEF = Plan(warmup_ms=15.0, total_ms=50.0)  # for one of many candidates


def layers(n: int) -> list[ConvSpec]:
    """Lists the distinct convolutions of ResNet-18 and ResNet-50 but 3x3 with stride 1."""
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


def candidates(spec: ConvSpec, algorithm: str, gpu: Gpu, most: int) -> dict[str, Choice]:
    """Lists the default config and others worth trying, `most` in all, by name."""
    able = (k for k in kernels_of(algorithm, gpu) if k.supports(spec, Epilogue(), gpu) is None)
    if (kernel := next(able, None)) is None:
        return {}
    found = kernel.configs(spec, gpu)[:most]
    return {f"config {i}" if i else "default": choice_of(kernel, c) for i, c in enumerate(found)}


class CuBlas(Torch):
    """A matrix product of the size of a 1x1 convolution, (K x C) times (C x P), by torch."""

    name, operator = "cublas", "matmul"

    def variants(self, spec: ConvSpec, epilogue: Epilogue) -> Any:
        if spec.r * spec.s == 1:
            yield from super().variants(spec, epilogue)

    def _prepare(self, problem: Problem, folder: Path | None) -> Prepared:
        import torch

        spec, epilogue = problem.spec, problem.epilogue
        x, w = (torch.from_dlpack(tensor) for tensor in problem.tensors()[:2])
        pixels = x[:, :, :: spec.strides[0], :: spec.strides[1]].transpose(0, 1).reshape(spec.c, -1)
        a, b = w.reshape(spec.k, spec.c), pixels.contiguous()
        out = torch.empty(spec.k, b.shape[1], device="cuda")

        def output() -> Any:  # the epilogue is no part of the product
            y = out.reshape(spec.k, spec.n, spec.oh, spec.ow).transpose(0, 1).cpu().numpy()
            rest = {name: problem.arrays.get(name) for name in ("bias", "residual")}
            return reference.apply_epilogue(spec, epilogue, y, **rest)

        def call() -> None:
            torch.matmul(a, b, out=out)

        return Prepared(call, output, PEER_LIMIT, config=f"torch {torch.__version__}")


PROVIDERS = {"torch": Torch, "cublas": CuBlas}


def measured(args: argparse.Namespace, specs: list[ConvSpec], store: Store) -> list[Row]:
    """Measures each convolution: ours, the default first, then peers."""
    with opened() as (bench, here):
        most = args.configs
        ours = Listed(bench, lambda spec, _: candidates(spec, args.algorithm, bench.gpu, most))
        peers = pick(PROVIDERS, (), list(PROVIDERS), bench, progress)
        settings = Settings(("graph",), ("warm",), BRIEF if most > 1 else Plan())
        epilogue = Epilogue.from_key(args.epilogue)
        return measure(specs, epilogue, [ours, *peers], bench, here, store, settings, progress)


def summary(spec: ConvSpec, rows: list[Row]) -> list[str]:
    """Writes one line of the table: default, best, peers, and what the two of ours are."""
    mine = [row for row in rows if row.spec == spec.key()]
    own = [row for row in mine if row.provider == "ours" and row.us]
    peers = {row.provider: row for row in mine if row.provider != "ours"}
    title = f"{spec.c}, {spec.h}² -> {spec.k}, {spec.r}x{spec.s}/{spec.stride}"
    default = next((row for row in own if row.variant == "default"), None)
    best = min(own, key=lambda r: r.us or 0.0, default=None)
    shown = [default, best, peers.get("torch"), peers.get("cublas")]
    error = f"{default.error:.1e}" if default and default.error is not None else ""
    return [title, *map(cell, shown), error, *(knobs(row) for row in shown[:2])]


def knobs(row: Row | None) -> str:
    """Writes what differs most between configs."""
    if row is None:
        return ""
    c = json.loads(row.config.partition(" ")[2])
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
    specs = [s for s in layers(args.batch) if args.only in s.key()]
    rows = measured(args, specs, Store([args.json] if args.json else []))
    columns = ["layer", "default", "best", "cuDNN", "cuBLAS", "error", "default is", "best is"]
    where = f"{rows[0].gpu}, batch {args.batch}: us (TFLOP/s)" if rows else "no layer"
    print_table(where, columns, [summary(spec, rows) for spec in specs])


if __name__ == "__main__":
    sys.exit(exit_code(main))
