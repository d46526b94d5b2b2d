"""MobileNetV2's depthwise layers, pooling and dense heads on this GPU, beside torch and dlight.

    python benchmarks/depthwise.py [--batch 1,32,128] [--configs [N]] [--dtype float32]
                                   [--only dense] [--without-dlight] [--json rows.json]

Depthwise: our default config, with --configs the first N (all) worth trying; the direct
convolution under TVM's dlight; torch (cuDNN's benchmark mode). Functions: as our compiler schedules
them, under dlight alone, torch (cuDNN, cuBLAS). TF32 off.

Outputs are poisoned and compared with float64 first. Times are medians in a CUDA graph, L2
warm; GB/s count input, weights and output once. Candidates are compiled by all cores while earlier
ones are measured. Needs torch with CUDA.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import depthwise_functions
from common import choice_of, exit_code, progress
from depthwise_functions import FUNCTIONS
from depthwise_rows import ROWS, Row

from tvm_winograd import ConvSpec, Epilogue
from tvm_winograd.bench.conv.ours import Listed
from tvm_winograd.bench.conv.provider import Bench
from tvm_winograd.bench.conv.rows import Row as ConvRow
from tvm_winograd.bench.conv.run import Settings, measure
from tvm_winograd.bench.conv.session import opened
from tvm_winograd.bench.conv.torch import Torch
from tvm_winograd.bench.providers import pick
from tvm_winograd.choose.select import Choice
from tvm_winograd.cli.common import print_table
from tvm_winograd.measure.conditions import Conditions
from tvm_winograd.measure.cuda_timing import Plan
from tvm_winograd.measure.row_files import Store
from tvm_winograd.schedules import KERNELS

EPILOGUE = Epilogue(bias=True, relu=True)
OURS, DLIGHT = "depthwise-cuda", "direct-dlight"
BRIEF = Plan(warmup_ms=10.0, total_ms=40.0)  # for one of many candidates
# channels, map, stride: of MobileNetV2 (Sandler et al., 2018), each once
LAYERS = (
    (32, 112, 1), (96, 112, 2), (144, 56, 1), (144, 56, 2), (192, 28, 1),
    (192, 28, 2), (384, 14, 1), (576, 14, 1), (576, 14, 2), (960, 7, 1),
)  # fmt: skip


class Convs:
    """Where rows of convolutions go: among the others."""

    def __init__(self, store: Store[Row]) -> None:
        self._store = store

    def add(self, rows: Sequence[ConvRow]) -> None:
        self._store.add([converted(row) for row in rows])


def converted(row: ConvRow) -> Row:
    """Turns a convolution's row into one of this benchmark."""
    spec, here = ConvSpec.from_key(row.spec), {f.name for f in fields(Conditions)}
    provider = "torch" if row.provider == "torch" else row.variant.partition(" ")[0]
    return Row(
        name=row.spec,
        batch=spec.n,
        provider=provider,
        us=row.us,
        spread_us=row.spread_us,
        gb_per_s=spec.bytes / row.us / 1e3 if row.us else None,
        error=row.error,
        detail=row.config if row.provider == "ours" else "",
        status=row.status,
        note=row.note,
        **{name: getattr(row, name) for name in here},
    )


def candidates(spec: ConvSpec, bench: Bench, most: int, dlight: bool) -> dict[str, Choice]:
    """Lists the default config, others worth trying, dlight's schedule, by name."""
    by_name = {kernel.name: kernel for kernel in KERNELS}
    found = by_name[OURS].configs(spec, bench.gpu)[:most]
    named = {
        f"config {i}" if i else "default": choice_of(by_name[OURS], config)
        for i, config in enumerate(found)
    }
    if dlight:
        named["dlight"] = choice_of(by_name[DLIGHT], by_name[DLIGHT].make_config({}))
    return named


def measured(args: argparse.Namespace, store: Store[Row]) -> None:
    """Measures every layer and function at every batch, into the store."""
    with opened() as (bench, here):
        ours = Listed(bench, lambda spec, _: candidates(spec, bench, args.configs, args.dlight))
        (torch,) = pick({"torch": Torch}, (), ["torch"], bench, progress)
        settings = Settings(("graph",), ("warm",), BRIEF if args.configs > 1 else Plan())
        both, sink = [ours, torch], Convs(store)
        for n in args.batch:
            specs = [
                ConvSpec(n, c, h, h, c, stride=s, groups=c, dtype=args.dtype) for c, h, s in LAYERS
            ]
            specs = [spec for spec in specs if args.only in spec.key()]
            measure(specs, EPILOGUE, both, bench, here, sink, settings, progress)
            names = [name for name in FUNCTIONS if args.only in name]
            depthwise_functions.measure(names, n, args.dlight, bench, here, store, progress)


def summary(rows: list[Row]) -> list[str]:
    """Writes one line of the table: default, best config, dlight, torch, and how ours was made."""
    first = {row.provider: row for row in reversed(rows)}
    own = [row for row in rows if row.provider in ("default", "config") and row.us]
    best = min(own, key=lambda row: row.us or 0.0, default=None)
    default, name = first["default"], rows[0].name
    if name not in FUNCTIONS:
        spec = ConvSpec.from_key(name)
        name = f"{spec.c}, {spec.h}², {spec.r}x{spec.s}/{spec.stride}"

    def cell(row: Row | None) -> str:
        return f"{row.us:.1f} ({row.gb_per_s:.0f})" if row and row.us else ""

    shown = [default, best, first.get("dlight"), first.get("torch")]
    error = "" if default.error is None else f"{default.error:.1e}"
    return [str(rows[0].batch), name, *map(cell, shown), error, best.detail if best else ""]


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
    store = Store(ROWS, [args.json] if args.json else [])
    before = set(store.rows)
    measured(args, store)
    found: dict[tuple[str, int], list[Row]] = {}
    for row in store.rows:
        if row not in before:
            found.setdefault((row.name, row.batch), []).append(row)
    columns = ["n", "layer", "default", "best", "dlight", "torch", "error", "best is"]
    gpu = next(iter(found.values()))[0].gpu if found else "nothing"
    print_table(f"{gpu}, {args.dtype}: us (GB/s)", columns, list(map(summary, found.values())))


if __name__ == "__main__":
    sys.exit(exit_code(main))
