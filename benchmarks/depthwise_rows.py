"""The rows of benchmarks/depthwise.py: layers and functions by name."""

from __future__ import annotations

from dataclasses import dataclass

from tvm_winograd.measure.conditions import Conditions
from tvm_winograd.measure.row_files import RowKind


@dataclass(frozen=True)
class Row(Conditions):
    """One way to compute one layer or function. Times are microseconds, missing unless "ok"."""

    name: str
    batch: int
    provider: str  # "default", "config", "dlight" or "torch"
    us: float | None = None
    spread_us: float | None = None
    gb_per_s: float | None = None
    error: float | None = None  # relative Frobenius, against float64
    detail: str = ""  # the config, or the schedule's name
    status: str = "ok"  # of attempt.STATUSES
    note: str = ""


ROWS = RowKind(
    Row,
    subject=lambda row: (
        *(row.gpu, row.name, str(row.batch), row.provider),
        row.detail if row.provider == "config" else "",
    ),
    replaces=lambda new, old: True,
)
