"""Arguments and output that several commands share."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable
from typing import Any

MODEL_HELP = "a built-in (resnet18, vgg16, mobilenetv2, unet, ...), an .onnx or a .pt2 file"


def progress_printer() -> Callable[[str], None]:
    """A function that shows a step and the seconds so far, on stderr."""
    from rich.console import Console
    from rich.markup import escape

    console, start = Console(stderr=True, highlight=False), time.perf_counter()

    def show(text: str) -> None:
        console.print(f"[dim]{time.perf_counter() - start:6.1f} s[/dim]  {escape(text)}")

    return show


def print_json(value: Any) -> None:
    """The one document of --json. JSON has no NaN and no infinity: they become null."""
    json.dump(_finite(value), sys.stdout, indent=2, allow_nan=False)
    print()


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def print_table(title: str, columns: list[str], rows: list[list[Any]]) -> None:
    """A table on stdout, as wide as it needs where stdout is no terminal."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=200)
    table = Table(*columns, title=title, title_justify="left")
    for row in rows:
        table.add_row(*(escape(str(value)) for value in row))
    console.print(table)
