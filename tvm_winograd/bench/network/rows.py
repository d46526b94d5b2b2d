"""Results of whole networks as rows, and the share of each kernel of ours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tvm_winograd.errors import InputError
from tvm_winograd.measure.attempt import STATUSES
from tvm_winograd.measure.conditions import Conditions
from tvm_winograd.measure.provenance import Provenance
from tvm_winograd.measure.row_files import RowKind


@dataclass(frozen=True)
class Row(Conditions):
    """One network with a batch, run by one provider. Times are milliseconds per batch, missing
    unless the status is "ok"."""

    model: str
    batch: int
    provider: str
    status: str  # of STATUSES
    options: str = ""  # what our compiler was asked for
    latency_ms: float | None = None  # median of single runs, from an idle GPU to an idle GPU
    latency_spread_ms: float | None = None  # width of the middle half
    interval_ms: float | None = None  # median, of runs queued back to back
    interval_spread_ms: float | None = None
    error: float | None = None  # relative Frobenius, against float64
    error_limit: float | None = None  # a multiple of a plain float32 evaluation's
    memory_bytes: int | None = None  # activations and workspaces; weights and inputs come on top
    compile_s: float | None = None
    config: str = ""  # kernels or versions, as text
    math: str = ""  # of precision.NAMES: how convolutions of ours compute products
    note: str = ""  # why it was refused, is wrong or failed

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise InputError(f"status={self.status!r}: there are {', '.join(STATUSES)}")
        if self.status == "ok" and not (self.latency_ms and self.interval_ms):
            raise InputError(f"{self.model} {self.provider}: ok without a latency or interval")


@dataclass(frozen=True)
class KernelRow(Provenance):
    """A CUDA kernel of a network of ours: its part of a run."""

    model: str
    batch: int
    options: str
    kernel: str
    schedule: str  # of the function it belongs to
    layers: str  # convolutions that call it, by name; empty if it is no convolution
    launches: float  # in one run
    us: float  # of all its launches in one run
    percent: float  # of the time of all kernels


MODELS = RowKind(
    Row,
    subject=lambda row: (row.gpu, row.model, str(row.batch), row.provider, row.options),
    replaces=lambda new, old: True,
)
KERNELS = RowKind(  # a profile is kept or replaced as a whole
    KernelRow,
    subject=lambda row: (row.gpu, row.model, str(row.batch), row.options),
    replaces=lambda new, old: True,
)


def kernel_file(path: Path) -> Path:
    """Names the file of the kernels' rows that lies beside a file of networks' rows."""
    return path.with_name(f"{path.stem}-kernels{path.suffix}")


def kernel_files(paths: Sequence[Path]) -> list[Path]:
    """Applies `kernel_file` to each."""
    return [kernel_file(path) for path in paths]
