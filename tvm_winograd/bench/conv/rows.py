"""Results of convolutions as rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tvm_winograd.errors import InputError
from tvm_winograd.measure import row_files
from tvm_winograd.measure.attempt import STATUSES
from tvm_winograd.measure.conditions import Conditions


@dataclass(frozen=True)
class Row(Conditions):
    """One way of one provider to compute one convolution, in one mode with one state of the L2.

    Times are microseconds per call; mode, l2 and numbers are missing unless the status is "ok".
    """

    spec: str  # ConvSpec.key()
    epilogue: str  # Epilogue.key()
    provider: str
    variant: str  # algorithm or configuration, by name
    status: str  # of STATUSES
    mode: str = ""  # of cuda_timing.MODES
    l2: str = ""  # of cuda_timing.L2_STATES
    us: float | None = None  # median
    spread_us: float | None = None  # width of the middle half
    tflops: float | None = None  # of the direct convolution's FLOPs, whatever the algorithm
    error: float | None = None  # relative Frobenius, against float64
    layout: str = ""  # of the arrays it ran on
    config: str = ""  # kernel and knobs, as text
    math: str = ""  # of precision.NAMES: how products were computed, where that is known
    workspace_bytes: int | None = None
    calls: int | None = None  # in one timed interval
    repeats: int | None = None  # intervals
    note: str = ""  # why it was refused, is wrong or failed

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise InputError(f"status={self.status!r}: there are {', '.join(STATUSES)}")
        if self.status == "ok" and not (self.us and self.us > 0 and self.mode and self.l2):
            raise InputError(f"{self.spec} {self.provider}: ok without a time, mode or L2 state")

    @property
    def name(self) -> str:
        """The provider and its variant."""
        return f"{self.provider} {self.variant}" if self.variant else self.provider


def subject(row: Row) -> tuple[str, ...]:
    """Names what was measured, in whatever mode."""
    return (row.gpu, row.spec, row.epilogue, row.provider, row.variant)


def replaces(new: Row, old: Row) -> bool:
    """Says whether `new` ends the life of `old`, of the same subject: a row without a mode speaks
    of all modes."""
    return not new.mode or not old.mode or (new.mode, new.l2) == (old.mode, old.l2)


CONVS = row_files.RowKind(Row, subject, replaces)
read, as_json, as_csv = CONVS.read, CONVS.as_json, CONVS.as_csv


class Store(row_files.Store[Row]):
    """Rows of convolutions in memory and in files."""

    def __init__(self, paths: Sequence[Path] = ()) -> None:
        """Raises:
        InputError: a file of another kind, or one that cannot be read.
        """
        super().__init__(CONVS, paths)
