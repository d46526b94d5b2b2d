"""The readable tables of tuning results: CSV files, one row per measured (or transferred) config.

A table lies in <folder>/<arch>/*.csv with the columns of `Row`. The text is the truth; a corrupt
line costs that line only and is reported.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from .shapes import ConvSpec, Epilogue


@dataclass(frozen=True)
class Row:
    """One result. `config` is the kernel's config as a dict."""

    gpu: str  # the GPU's name; an H100 and an H200 are both sm_90
    arch: str
    spec: str  # ConvSpec.key()
    epilogue: str  # Epilogue.key()
    kernel: str
    config: dict[str, Any] = field(hash=False)
    us: float  # microseconds, median
    file: str = ""  # where the row stands


def shipped_folder() -> Path:
    """The tables that come with the package."""
    from importlib.util import find_spec

    spec = find_spec("tvm_winograd.tune_logs")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent


def read_folder(folder: Path, arch: str) -> tuple[list[Row], list[str]]:
    """(rows, complaints) of every table for `arch` below `folder`."""
    rows: list[Row] = []
    complaints: list[str] = []
    for path in sorted((folder / arch).glob("*.csv")):
        got, bad = read_table(path)
        rows += got
        complaints += bad
    return rows, complaints


def read_table(path: Path) -> tuple[list[Row], list[str]]:
    """(rows, complaints) of one table."""
    rows, complaints = [], []
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        for number, record in enumerate(csv.DictReader(file), start=2):
            try:
                rows.append(_row(record, f"{path.name}:{number}"))
            except (KeyError, TypeError, ValueError) as error:
                complaints.append(f"{path}:{number}: line left out: {error!r}")
    return rows, complaints


def lookup(
    rows: Iterable[Row], spec: ConvSpec, epilogue: Epilogue, gpu_name: str | None = None
) -> list[Row]:
    """Rows for exactly this convolution, those of `gpu_name` first, then the fastest first."""
    found = [r for r in rows if r.spec == spec.key() and r.epilogue == epilogue.key()]
    return sorted(found, key=lambda r: (r.gpu != gpu_name, r.us))


def _row(record: dict[str, Any], where: str) -> Row:
    texts = {f.name: str(record[f.name]) for f in fields(Row) if f.name not in ("config", "file")}
    config = json.loads(record["config"])
    if not isinstance(config, dict):
        raise ValueError(f"config is no JSON object: {record['config']!r}")
    us = float(texts.pop("us"))
    if not us > 0:
        raise ValueError(f"us={us}")
    return Row(config=config, us=us, file=where, **texts)
