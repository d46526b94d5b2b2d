"""Numbers, means and tables of rows, as Markdown that is also aligned as plain text."""

from __future__ import annotations

import statistics
from collections.abc import Hashable, Iterable, Sequence
from typing import TypeVar

K = TypeVar("K", bound=Hashable)


def number(value: float | None, form: str) -> str:
    """Formats a number; empty for what was not measured."""
    return "" if value is None else format(value, form)


def grid(columns: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Draws a table."""
    cells = [[text.replace("|", "/") for text in line] for line in lines]
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    rule = ["-" * max(width, 3) for width in widths]
    return "\n".join(
        "| " + " | ".join(t.ljust(w) for t, w in zip(line, widths, strict=True)).rstrip() + " |"
        for line in (columns, rule, *cells)
    )


def geometric_means(ratios: Iterable[tuple[K, float | None]]) -> dict[K, tuple[float, int]]:
    """Maps each key to (geometric mean of its ratios, their number); None is passed by."""
    found: dict[K, list[float]] = {}
    for key, ratio in ratios:
        if ratio is not None:
            found.setdefault(key, []).append(ratio)
    return {key: (statistics.geometric_mean(v), len(v)) for key, v in found.items()}
