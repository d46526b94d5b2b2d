"""Rows of one convolution side by side: speed-ups of ours, their geometric means, tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tvm_winograd.shapes import ConvSpec

from ..text import geometric_means, grid, number
from .layers import title
from .rows import Row

FASTEST_CUDNN = "cudnn, the fastest of each"


@dataclass(frozen=True, order=True)
class Setting:
    """What rows must have in common to be in one table."""

    gpu: str
    epilogue: str
    mode: str
    l2: str

    def __str__(self) -> str:
        return f"{self.gpu}, {self.mode}, L2 {self.l2}, epilogue {self.epilogue}"


@dataclass(frozen=True)
class Mean:
    """How many times faster than `other` our best is, over `layers` convolutions."""

    other: str
    ratio: float  # geometric mean
    layers: int


# spec -> name of provider and variant -> row; convolutions and providers in order of measurement
Table = dict[str, dict[str, Row]]


def tables(rows: Sequence[Row]) -> dict[Setting, Table]:
    """Sorts rows by setting. One without a time (it was refused) stands in all settings."""
    settings = {Setting(r.gpu, r.epilogue, r.mode, r.l2) for r in rows if r.mode}
    found: dict[Setting, Table] = {}
    for setting in sorted(settings):
        table: Table = {}
        for row in rows:
            same = (row.gpu, row.epilogue) == (setting.gpu, setting.epilogue)
            if same and (row.mode, row.l2) in (("", ""), (setting.mode, setting.l2)):
                table.setdefault(row.spec, {})[row.name] = row
        found[setting] = table
    return found


def ours(named: dict[str, Row]) -> Row | None:
    """Finds our row of a convolution: what the compiler would choose, else our fastest."""
    mine = [row for row in named.values() if row.provider == "ours" and row.us]
    best = [row for row in mine if row.variant == "best"]
    return min(best or mine, key=_us, default=None)


def fastest(named: dict[str, Row], provider: str) -> Row | None:
    """Finds a provider's fastest way to compute a convolution."""
    return min(
        (r for r in named.values() if r.provider == provider and r.us), key=_us, default=None
    )


def speedup(named: dict[str, Row], other: Row | None) -> float | None:
    """Says how many times faster than `other` ours is; None if either has no time."""
    mine = ours(named)
    return _us(other) / _us(mine) if mine and other and other.us else None


def means(table: Table) -> list[Mean]:
    """Compares ours with cuDNN's fastest algorithm for each, then with every row's name."""
    found = geometric_means(
        (name, speedup(named, row))
        for named in table.values()
        for name, row in {FASTEST_CUDNN: fastest(named, "cudnn"), **named}.items()
        if row is not ours(named)
    )
    order = sorted(found, key=lambda name: name != FASTEST_CUDNN)
    return [Mean(name, *found[name]) for name in order]


def markdown(rows: Sequence[Row]) -> str:
    """Writes a table of all providers, convolution by convolution, and the means, per setting."""
    parts = []
    for setting, table in tables(rows).items():
        parts += [f"## {setting}", "", _table(table), ""]
        lines = [[m.other, f"{m.ratio:.2f}", str(m.layers)] for m in means(table)]
        if lines:
            columns = ["ours against", "times faster (geometric mean)", "convolutions"]
            parts += [grid(columns, lines), ""]
    return "\n".join(parts)


def _table(table: Table) -> str:
    columns = ["convolution", "provider", "us", "±", "TFLOP/s", "error", "ours is faster by", ""]
    lines = []
    for key, named in table.items():
        name = title(ConvSpec.from_key(key))
        lines += [[name, *_cells(named, row)] for row in _by_time(named.values())]
    return grid(columns, lines)


def _cells(named: dict[str, Row], row: Row) -> list[str]:
    ratio = speedup(named, row)
    return [
        row.name,
        number(row.us, ".1f"),
        number(row.spread_us, ".1f"),
        number(row.tflops, ".1f"),
        number(row.error, ".1e"),
        number(ratio, ".2f"),
        _remark(row),
    ]


def _remark(row: Row) -> str:
    """Why there is no time; of ours the kernel, without its knobs."""
    if not row.us:
        return f"{row.status}: {row.note}"
    return f"{row.config.split()[0]}, {row.layout}" if row.provider == "ours" else ""


def _by_time(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: row.us or float("inf"))


def _us(row: Row) -> float:
    return row.us or float("inf")
