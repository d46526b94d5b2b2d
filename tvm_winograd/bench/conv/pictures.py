"""Pictures of convolution rows: a heat map of speed-ups over cuDNN's algorithms, a roofline."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tvm_winograd.errors import InputError
from tvm_winograd.gpu import Gpu, gpu_for
from tvm_winograd.measure.cudnn_library import ALGORITHMS
from tvm_winograd.shapes import ConvSpec

from ..pictures import pyplot, save
from .compare import Setting, Table, fastest, ours, speedup, tables
from .layers import title
from .rows import Row

# FLOPs of the direct convolution per FLOP of the batched products: m^2 r^2 / alpha^2
_REDUCTION = {"F(2x2)": 4 * 9 / 16, "F(4x4)": 16 * 9 / 36}


def draw(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Draws both pictures of every setting the rows were measured in, as PNG files in `folder`.

    Raises:
        InputError: no row has a time.  UnsupportedError: matplotlib is not installed.
    """
    plt, figures = pyplot(), {}
    found = {s: t for s, t in tables(rows).items() if any(map(ours, t.values()))}
    if not found:
        raise InputError("no row of ours has a time: nothing to draw")
    for setting, table in found.items():
        gpu = gpu_for(next(iter(next(iter(table.values())).values())).arch)
        figures[f"speedup-{setting}"] = heat_map(plt, setting, table)
        figures[f"roofline-{setting}"] = roofline(plt, setting, table, gpu)
    return save(plt, figures, folder)


def heat_map(plt: Any, setting: Setting, table: Table) -> Any:
    """Draws convolutions by cuDNN algorithms, in each cell how many times faster ours is."""
    from matplotlib.colors import TwoSlopeNorm

    specs = [spec for spec, named in table.items() if ours(named)]
    cells = [[_ratio(table[spec], name) for name in ALGORITHMS] for spec in specs]
    figure, axes = plt.subplots(figsize=(1.1 * len(ALGORITHMS) + 2, 0.4 * len(specs) + 2))
    values = [[float("nan") if v is None else v for v in row] for row in cells]
    norm = TwoSlopeNorm(1.0, vmin=0.5, vmax=4.0)
    image = axes.imshow(values, cmap="RdYlGn", norm=norm, aspect="auto", alpha=0.8)
    for y, row in enumerate(cells):
        for x, value in enumerate(row):
            text = "-" if value is None else f"{value:.2f}"
            axes.text(x, y, text, ha="center", va="center", fontsize=8)
    axes.set_xticks(range(len(ALGORITHMS)), ALGORITHMS, rotation=30, ha="right", fontsize=8)
    axes.set_yticks(range(len(specs)), [title(ConvSpec.from_key(s)) for s in specs], fontsize=8)
    axes.set_title(f"Speed-up of ours over cuDNN's algorithms\n{setting}", fontsize=10)
    figure.colorbar(image, ax=axes, label="times faster")
    return figure


def roofline(plt: Any, setting: Setting, table: Table, gpu: Gpu) -> Any:
    """Draws TFLOP/s over arithmetic intensity, both of the direct convolution, with what the
    GPU's memory and FMA units allow; the Winograd algorithms need fewer FLOPs and may be above."""
    figure, axes = plt.subplots(figsize=(8, 5))
    markers = {"ours best": "o", "cudnn, fastest": "s", "torch conv2d": "^", "tvm-dlight": "v"}
    markers["tvm-metaschedule"] = "D"
    intensities: list[float] = []
    for name, marker in markers.items():
        if points := _points(table, name):
            axes.plot(*zip(*points, strict=True), marker, label=name, markersize=5)
            intensities += [x for x, _ in points]
    ridge = gpu.fp32_tflops * 1e3 / gpu.gb_per_s  # FLOPs a byte where both limits meet
    low, high = min(ridge / 2, *intensities), max(8 * ridge, *intensities) * 1.5
    for name, factor in {"direct": 1.0, **_REDUCTION}.items():
        peak, corner = gpu.fp32_tflops * factor, ridge * factor
        xs = [low, corner, high]
        ys = [low * gpu.gb_per_s * 1e-3, peak, peak]
        axes.plot(xs, ys, "-" if name == "direct" else "--", color="grey", linewidth=1)
        label = f"{name}: {peak:.0f}"
        axes.text(high, peak, label, ha="right", va="bottom", fontsize=8)
    axes.set(xscale="log", yscale="log", xlim=(low, high))
    axes.set_xlabel("FLOPs per byte, each array moved once")
    axes.set_ylabel("TFLOP/s of the direct convolution")
    limits = f"{gpu.gb_per_s:.0f} GB/s, {gpu.fp32_tflops:.1f} TFLOP/s"
    axes.set_title(f"{setting}\n{gpu.arch}: {limits}", fontsize=10)
    axes.legend(fontsize=8, loc="lower left")
    return figure


def _points(table: Table, name: str) -> list[tuple[float, float]]:
    """Lists (FLOPs per byte, TFLOP/s) of each convolution that has the row."""
    points = []
    for key, named in table.items():
        spec = ConvSpec.from_key(key)
        row = ours(named) if name == "ours best" else _find(named, name)
        if row is not None and row.tflops:
            points.append((spec.flops / spec.bytes, row.tflops))
    return points


def _find(named: dict[str, Row], name: str) -> Row | None:
    return fastest(named, "cudnn") if name.startswith("cudnn") else named.get(name)


def _ratio(named: dict[str, Row], algorithm: str) -> float | None:
    return speedup(named, named.get(f"cudnn {algorithm}"))
