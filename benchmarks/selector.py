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
import random
import sys
from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from common import choice_of, exit_code, progress

from tvm_winograd import ConvSpec, Epilogue
from tvm_winograd.bench.conv.ours import Listed
from tvm_winograd.bench.conv.rows import Row
from tvm_winograd.bench.conv.run import Settings, measure
from tvm_winograd.bench.conv.session import opened
from tvm_winograd.choose.select import Choice
from tvm_winograd.errors import TvmWinogradError
from tvm_winograd.gpu import Gpu
from tvm_winograd.measure.cuda_timing import Plan
from tvm_winograd.measure.provenance import Provenance
from tvm_winograd.schedules import KERNELS
from tvm_winograd.schedules.base.kernel import Kernel, config_dict

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
    """Draws the convolutions, always the same ones; odd positions are held out."""
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
    """Lists (kernel, its default config) of all that apply."""
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
    """Lists the candidates that no row describes."""
    known = rows.get(spec.key(), {})
    return [(k, c) for k, c in candidates(spec, gpu) if not describes(known.get(k.name), k, c)]


def describes(row: dict | None, kernel: Kernel, config: Any) -> bool:
    """Says whether a row is of this config; fields it is older than have their defaults."""
    try:
        return row is not None and kernel.make_config(row["config"]) == config
    except TvmWinogradError:
        return False


def line_of(row: Row, config: Any) -> dict[str, Any]:
    """Turns a row into a line of the file."""
    assert row.us is not None and row.spread_us is not None
    return {
        "spec": row.spec,
        "kernel": row.variant,
        "config": config_dict(config),
        "us": round(row.us, 3),
        "spread_us": round(row.spread_us, 3),
        "error": float(f"{row.error:.3e}"),
    }


class Lines:
    """Where rows go: a line each at the end of a file; what has no time is left out."""

    def __init__(self, file: TextIO, todo: dict[ConvSpec, dict[str, Any]]) -> None:
        self._file = file
        self._configs = {spec.key(): configs for spec, configs in todo.items()}

    def add(self, rows: Sequence[Row]) -> None:
        for row in rows:
            if row.status != "ok":
                progress(f"{row.spec}: {row.variant} is left out: {row.note}")
                continue
            line = line_of(row, self._configs[row.spec][row.variant])
            self._file.write(json.dumps(line) + "\n")
        self._file.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="JSON lines")
    parser.add_argument("--part", default="0/1", metavar="I/N", help="each N-th convolution")
    args = parser.parse_args()
    part, parts = map(int, args.part.split("/"))
    with opened() as (bench, here):
        rows = read(args.out) if args.out.exists() else {}
        able = {spec: missing(spec, rows, bench.gpu) for spec in grid()[part::parts]}
        todo = {spec: {k.name: config for k, config in found} for spec, found in able.items()}
        todo = {spec: configs for spec, configs in todo.items() if configs}
        with args.out.open("a") as file:
            if not rows:
                made = {f.name: getattr(here, f.name) for f in fields(Provenance)}
                file.write(json.dumps({"where": made}) + "\n")
            ours = Listed(bench, partial(listed, todo))
            settings = Settings(("graph",), ("warm",), PLAN)
            sink = Lines(file, todo)
            measure(list(todo), EPILOGUE, [ours], bench, here, sink, settings, progress)


def listed(
    todo: dict[ConvSpec, dict[str, Any]], spec: ConvSpec, epilogue: Epilogue
) -> dict[str, Choice]:
    """Lists what is to be measured of a convolution, by the kernel's name."""
    by_name = {kernel.name: kernel for kernel in KERNELS}
    return {name: choice_of(by_name[name], config) for name, config in todo[spec].items()}


if __name__ == "__main__":
    sys.exit(exit_code(main))
