"""Rows of networks side by side: speed-ups of ours, their geometric means, tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..text import geometric_means, grid, number
from .ours import NAMES
from .rows import KernelRow, Row

MEASURES = ("latency", "interval")
_SHOWN_KERNELS = 15


@dataclass(frozen=True)
class Mean:
    """How many times faster than `other` ours is, over `networks` (models with a batch)."""

    gpu: str
    other: str
    measure: str  # of MEASURES
    ratio: float  # geometric mean
    networks: int


# (gpu, model, batch) -> name of provider, with options -> row; both in order of measurement
Table = dict[tuple[str, str, int], dict[str, Row]]


def table(rows: Iterable[Row]) -> Table:
    """Sorts rows by network."""
    found: Table = {}
    for row in rows:
        found.setdefault((row.gpu, row.model, row.batch), {})[title(row)] = row
    return found


def title(row: Row) -> str:
    """Names the provider, with what our compiler was asked for."""
    return f"{row.provider} ({row.options})" if row.options else row.provider


def ours(named: dict[str, Row]) -> Row | None:
    """Finds our row of a network, which others are compared with: if there is a choice, the one as
    it is deployed, without options."""
    timed = [row for row in named.values() if row.provider in NAMES and row.status == "ok"]
    order = [(name, plain) for name in NAMES for plain in (True, False)]
    return min(timed, key=lambda r: order.index((r.provider, not r.options)), default=None)


def speedup(named: dict[str, Row], other: Row, measure: str) -> float | None:
    """Says how many times faster than `other` ours is; None if either has no time."""
    mine = ours(named)
    if mine is None or other.status != "ok":
        return None
    theirs, own = (getattr(row, f"{measure}_ms") for row in (other, mine))
    return float(theirs / own)


def means(found: Table) -> list[Mean]:
    """Compares ours with every other provider, for both measures."""
    ratios = geometric_means(
        ((gpu, name, measure), speedup(named, row, measure))
        for (gpu, _, _), named in found.items()
        for name, row in named.items()
        for measure in MEASURES
        if row is not ours(named)
    )
    return [Mean(*key, *mean) for key, mean in ratios.items()]


def markdown(rows: Sequence[Row], kernels: Sequence[KernelRow] = ()) -> str:
    """Writes a table of all providers of every network; the means; the kernels of profiles."""
    found, parts = table(rows), []
    for (gpu, model, batch), named in found.items():
        parts += [f"## {gpu}, {model}, batch {batch}", "", _providers(named), ""]
    lines = [[m.gpu, m.other, m.measure, f"{m.ratio:.2f}", str(m.networks)] for m in means(found)]
    if lines:
        columns = ["GPU", "ours against", "measure", "times faster (geometric mean)", "networks"]
        parts += ["## Means", "", grid(columns, lines), ""]
    for head, shares in profiles(kernels).items():
        parts += [f"## Kernels of {head}", "", _kernels(shares), ""]
    return "\n".join(parts)


def profiles(kernels: Iterable[KernelRow]) -> dict[str, list[KernelRow]]:
    """Sorts kernels by network, the longest first; keys name GPU, model, batch and options."""
    found: dict[str, list[KernelRow]] = {}
    for row in sorted(kernels, key=lambda row: -row.us):
        options = f", {row.options}" if row.options else ""
        found.setdefault(f"{row.model}, batch {row.batch}{options}, {row.gpu}", []).append(row)
    return found


def _providers(named: dict[str, Row]) -> str:
    columns = ["provider", "latency ms", "±", "interval ms", "±", "MiB", "error"]
    columns += ["ours is faster by (latency)", "(interval)", ""]
    order = sorted(named.values(), key=lambda row: row.latency_ms or float("inf"))
    return grid(columns, [_cells(named, row) for row in order])


def _cells(named: dict[str, Row], row: Row) -> list[str]:
    mib = None if row.memory_bytes is None else row.memory_bytes / 2**20
    return [
        title(row),
        number(row.latency_ms, ".3f"),
        number(row.latency_spread_ms, ".3f"),
        number(row.interval_ms, ".3f"),
        number(row.interval_spread_ms, ".3f"),
        number(mib, ".1f"),
        number(row.error, ".1e"),
        *(number(speedup(named, row, measure), ".2f") for measure in MEASURES),
        row.config if row.status == "ok" else f"{row.status}: {row.note}",
    ]


def _kernels(shares: Sequence[KernelRow]) -> str:
    columns = ["%", "us", "launches", "schedule", "kernel", "layers"]
    lines = [
        [f"{k.percent:.1f}", f"{k.us:.1f}", f"{k.launches:g}", k.schedule, k.kernel, k.layers]
        for k in shares[:_SHOWN_KERNELS]
    ]
    rest = shares[_SHOWN_KERNELS:]
    if rest:
        percent, us = sum(k.percent for k in rest), sum(k.us for k in rest)
        launches = sum(k.launches for k in rest)
        name = f"{len(rest)} more"
        lines.append([f"{percent:.1f}", f"{us:.1f}", f"{launches:g}", "", name, ""])
    return grid(columns, lines)
