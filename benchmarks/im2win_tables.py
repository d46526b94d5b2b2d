"""The tables of benchmarks/im2win.py: times, memory, ablation, the papers' figures."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm_winograd import ConvSpec
from tvm_winograd.bench.conv.rows import Row
from tvm_winograd.cli.common import print_table
from tvm_winograd.te import im2win

WITHOUT = "im2win without "
DEFAULT = " default"  # behind an algorithm's name: its default, where the tables choose another


def fastest(rows: Sequence[Row], start: str) -> Row | None:
    timed = [row for row in rows if row.us and row.name.startswith(start)]
    return min(timed, key=lambda row: row.us or 0.0, default=None)


def title(spec: ConvSpec) -> str:
    return f"{spec.c}, {spec.h}² -> {spec.k}, {spec.r}x{spec.s}/{spec.stride}"


def default_of(rows: Sequence[Row], name: str) -> Row | None:
    """Finds the default config of an algorithm of ours; without a row of its own it was chosen."""
    named = {row.variant: row for row in rows if row.provider == "ours"}
    return named.get(name + DEFAULT, named.get(name))


def print_times(specs: list[ConvSpec], rows: list[Row], others: Sequence[str]) -> None:
    """Defaults of im2win and im2col, the best of all: us (TFLOP/s of the direct convolution)."""
    columns = {name: f"ours {name}" for name in ("im2win", *others)}
    columns |= {"cuDNN": "cudnn "} if any(row.provider == "cudnn" for row in rows) else {}
    defaults = [name for name in ("im2win", "im2col") if name in columns]
    lines = []
    for spec in specs:
        mine = [row for row in rows if row.spec == spec.key() and WITHOUT not in row.name]
        picked = [default_of(mine, name) for name in defaults]
        error = f"{picked[0].error:.1e}" if picked[0] and picked[0].error else ""
        picked += [fastest(mine, start) for start in columns.values()]
        cells = [f"{r.us:.1f} ({r.tflops:.2f})" if r and r.us else "" for r in picked]
        best = picked[-1].variant if picked[-1] and picked[-1].provider == "cudnn" else ""
        lines.append([title(spec), *cells, error, best])
    heads = [*(f"default {name}" for name in defaults), *(f"best {name}" for name in columns)]
    heads = ["layer", *heads, "error", "cuDNN's"]
    print_table(f"{where(rows)}: us (TFLOP/s)", heads, lines)


def print_memory(specs: list[ConvSpec], rows: list[Row]) -> None:
    """Prints bytes of the transformed input by definition, and of all that programs allocate."""
    lines = []
    for spec in specs:
        mine = [row for row in rows if row.spec == spec.key() and WITHOUT not in row.name]
        used = [fastest(mine, start) for start in ("ours im2win", "ours im2col", "cudnn ")]
        sizes = [row.workspace_bytes if row else None for row in used]
        defined = [4 * im2win.footprint(spec), 4 * im2win.im2col_footprint(spec)]
        cells = ["" if size is None else f"{size:,}" for size in (*defined, *sizes)]
        lines.append([title(spec), *cells, f"{defined[1] / defined[0]:.2f}"])
    columns = [
        "layer", "windows", "im2col's matrix", "im2win needs", "im2col needs",
        "cuDNN's fastest needs", "matrix / windows",
    ]  # fmt: skip
    print_table(f"{where(rows)}: bytes beside input, weights and output", columns, lines)


def print_ablation(specs: list[ConvSpec], rows: list[Row]) -> None:
    """us with everything, then how many times slower without one optimisation."""
    names = list(dict.fromkeys(row.variant for row in rows if WITHOUT in row.name))
    lines = []
    for spec in specs:
        mine = {row.variant: row.us for row in rows if row.spec == spec.key()}
        full = mine.get("im2win")
        if full:
            slower = [f"{us / full:.2f}" if (us := mine.get(name)) else "" for name in names]
            lines.append([title(spec), f"{full:.1f}", *slower])
    heads = [name.removeprefix("im2win ") for name in names]
    print_table(f"{where(rows)}: times as slow", ["layer", "us", *heads], lines)


def print_summary(specs: list[ConvSpec], rows: list[Row]) -> None:
    """Prints the papers' figures: the best of im2win against the best of each other."""
    mine = [row for row in rows if WITHOUT not in row.name]
    lines = []
    for name, start in {
        "im2col": "ours im2col", "implicit GEMM": "ours gemm", "direct": "ours direct",
        "cuDNN's fastest": "cudnn ", "cuDNN's GEMM": "cudnn GEMM",
    }.items():  # fmt: skip
        faster, saved = [], []
        for spec in specs:
            there = [row for row in mine if row.spec == spec.key()]
            ours, other = fastest(there, "ours im2win"), fastest(there, start)
            if ours and other and ours.us and other.us:
                faster.append(other.us / ours.us)
                # memory as the papers count it: with input, weights and output
                used = [4 * tensors(spec) + (r.workspace_bytes or 0) for r in (ours, other)]
                saved.append(1 - used[0] / used[1])
        if faster:
            mean = math.prod(faster) ** (1 / len(faster))
            cells = f"{sum(f >= 1 for f in faster)} of {len(faster)}", f"{mean:.2f}"
            memory = f"{100 * sum(saved) / len(saved):.1f} %"
            lines.append([name, *cells, f"{max(faster):.2f}", memory])
    heads = ["im2win against", "as fast in", "times as fast", "at most", "less memory"]
    print_table(f"{where(rows)}: geometric mean of times, mean of memory", heads, lines)


def tensors(spec: ConvSpec) -> int:
    """Elements of input, weights and output."""
    shapes = spec.input_shape, spec.weight_shape, spec.output_shape
    return sum(math.prod(shape) for shape in shapes)


def where(rows: list[Row]) -> str:
    return f"{rows[0].gpu}, batch {ConvSpec.from_key(rows[0].spec).n}"
