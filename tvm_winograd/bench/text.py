"""Numbers and tables as Markdown that is also aligned as plain text."""

from __future__ import annotations

from collections.abc import Sequence


def number(value: float | None, form: str) -> str:
    """Empty for what was not measured."""
    return "" if value is None else format(value, form)


def grid(columns: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table."""
    cells = [[text.replace("|", "/") for text in line] for line in lines]
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    rule = ["-" * max(width, 3) for width in widths]
    return "\n".join(
        "| " + " | ".join(t.ljust(w) for t, w in zip(line, widths, strict=True)).rstrip() + " |"
        for line in (columns, rule, *cells)
    )
