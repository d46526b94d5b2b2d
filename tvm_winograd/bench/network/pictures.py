"""Pictures of networks' rows: speed-ups of ours, and where the time of a run goes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tvm_winograd.errors import InputError

from ..pictures import pyplot, save
from .compare import MEASURES, Table, ours, profiles, speedup, table
from .rows import KernelRow, Row

_SHOWN = 20  # kernels; the others are one bar


def draw(rows: Sequence[Row], kernels: Sequence[KernelRow], folder: Path) -> list[Path]:
    """Draws PNG files in `folder`: speed-ups per GPU and measure, the kernels of each profile.

    Raises:
        InputError: there is nothing to draw.  UnsupportedError: matplotlib is not installed.
    """
    plt, figures = pyplot(), {}
    found = {key: named for key, named in table(rows).items() if ours(named)}
    for gpu in dict.fromkeys(key[0] for key in found):
        part = {key: named for key, named in found.items() if key[0] == gpu}
        for measure in MEASURES:
            figures[f"speedup-{measure}-{gpu}"] = speedups(plt, part, gpu, measure)
    for head, shares in profiles(kernels).items():
        figures[f"kernels-{head}"] = kernel_bars(plt, head, shares)
    if not figures:
        raise InputError("no row of ours has a time, and no kernel: nothing to draw")
    return save(plt, figures, folder)


def speedups(plt: Any, found: Table, gpu: str, measure: str) -> Any:
    """Draws for each network a group of bars, how many times faster ours is than each other."""
    ratios: dict[str, dict[int, float]] = {}  # provider -> number of the network -> how many times
    for group, named in enumerate(found.values()):
        for name, row in named.items():
            if row is not ours(named) and (ratio := speedup(named, row, measure)) is not None:
                ratios.setdefault(name, {})[group] = ratio
    thick = 0.8 / max(len(ratios), 1)
    figure, axes = plt.subplots(figsize=(8, (0.2 * len(ratios) + 0.1) * len(found) + 1.2))
    for index, (name, bars) in enumerate(ratios.items()):
        places = [group + thick * (index - (len(ratios) - 1) / 2) for group in bars]
        drawn = axes.barh(places, list(bars.values()), thick, label=name)
        axes.bar_label(drawn, fmt="%.2f", fontsize=7, padding=2)
    labels = [f"{model}, batch {batch}" for _, model, batch in found]
    axes.set_yticks(range(len(labels)), labels, fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.08)
    axes.axvline(1.0, color="grey", linewidth=1)
    axes.set_xlabel(f"times faster ({measure})")
    axes.set_title(f"Speed-up of ours, {gpu}", fontsize=10)
    if ratios:
        axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def kernel_bars(plt: Any, head: str, shares: Sequence[KernelRow]) -> Any:
    """Draws a bar per kernel with its time in a run, a colour per schedule."""
    shown, rest = shares[:_SHOWN], shares[_SHOWN:]
    bars = [(_title(row), row.us, row.percent, row.schedule or "other") for row in shown]
    if rest:
        times = sum(row.us for row in rest), sum(row.percent for row in rest)
        bars.append((f"{len(rest)} more", *times, "other"))
    figure, axes = plt.subplots(figsize=(9, 0.28 * len(bars) + 1.2))
    for schedule in dict.fromkeys(bar[3] for bar in bars):
        mine = [(index, bar) for index, bar in enumerate(bars) if bar[3] == schedule]
        drawn = axes.barh([i for i, _ in mine], [bar[1] for _, bar in mine], label=schedule)
        axes.bar_label(drawn, [f"{bar[2]:.1f} %" for _, bar in mine], fontsize=7, padding=2)
    axes.set_yticks(range(len(bars)), [bar[0] for bar in bars], fontsize=7)
    axes.invert_yaxis()
    axes.margins(x=0.08)
    axes.set_xlabel("microseconds in one run")
    axes.set_title(f"Kernels of {head}: {sum(row.us for row in shares):.0f} us", fontsize=10)
    axes.legend(fontsize=8, loc="center right")
    return figure


def _title(row: KernelRow, longest: int = 48) -> str:
    """Names the layers, as many as there is room for, or the kernel of what is no convolution."""
    text = row.layers or row.kernel
    text = text if len(text) <= longest else text[: longest - 3] + "..."
    return f"{text} ({row.launches:g}x)"
