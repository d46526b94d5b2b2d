"""What pictures of all rows share: matplotlib, and how figures become files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tvm_winograd.errors import UnsupportedError


def pyplot() -> Any:
    """Loads matplotlib's pyplot, drawing into files.

    Raises:
        UnsupportedError: matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise UnsupportedError(
            "pictures need matplotlib: pip install 'tvm-winograd[bench]'"
        ) from error
    matplotlib.use("Agg")
    import matplotlib.pyplot

    return matplotlib.pyplot


def save(plt: Any, figures: Mapping[str, Any], folder: Path) -> list[Path]:
    """Writes each figure as a PNG file of its name in `folder`, and closes it."""
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for name, figure in figures.items():
        made.append(folder / f"{_slug(name)}.png")
        figure.savefig(made[-1], dpi=150, bbox_inches="tight")
        plt.close(figure)
    return made


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
