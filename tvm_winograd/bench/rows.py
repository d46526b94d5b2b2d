"""Results as rows, kept in JSON and CSV files that are whole at every moment."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from ..errors import InputError

# refused: the provider cannot compute it; wrong: it was computed, badly, and not timed;
# failed: it broke while it was prepared or run
STATUSES = ("ok", "refused", "wrong", "failed")


@dataclass(frozen=True)
class Conditions:
    """Where, with what and how a whole session measured."""

    gpu: str
    arch: str
    driver: str
    cuda: str  # runtime library
    cudnn: str
    torch: str
    tvm: str
    version: str  # of this package
    commit: str
    date: str  # ISO, UTC
    method: str


@dataclass(frozen=True)
class Row:
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
    workspace_bytes: int | None = None
    calls: int | None = None  # in one timed interval
    repeats: int | None = None  # intervals
    note: str = ""  # why it was refused, is wrong or failed
    gpu: str = ""
    arch: str = ""
    driver: str = ""
    cuda: str = ""
    cudnn: str = ""
    torch: str = ""
    tvm: str = ""
    version: str = ""
    commit: str = ""
    date: str = ""
    method: str = ""

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise InputError(f"status={self.status!r}: there are {', '.join(STATUSES)}")
        if self.status == "ok" and not (self.us and self.us > 0 and self.mode and self.l2):
            raise InputError(f"{self.spec} {self.provider}: ok without a time, mode or L2 state")

    @property
    def name(self) -> str:
        """The provider and its variant."""
        return f"{self.provider} {self.variant}" if self.variant else self.provider


COLUMNS = tuple(f.name for f in fields(Row))
_TYPES = {f.name: str(f.type).split(" ")[0] for f in fields(Row)}
_PARSE = {"str": str, "float": float, "int": int}


def subject(row: Row) -> tuple[str, ...]:
    """What was measured, in whatever mode."""
    return (row.gpu, row.spec, row.epilogue, row.provider, row.variant)


def replaces(new: Row, old: Row) -> bool:
    """Of rows of one subject: a row without a mode speaks of all modes."""
    return not new.mode or not old.mode or (new.mode, new.l2) == (old.mode, old.l2)


class Store:
    """Rows in memory and in files, .json or .csv; what the files held before is kept."""

    def __init__(self, paths: Sequence[Path] = ()) -> None:
        """Raises:
        InputError: a file of another kind, or one that cannot be read.
        """
        for path in paths:
            if path.suffix not in (".json", ".csv"):
                raise InputError(f"{path}: a file that ends in .json or .csv is needed")
        self._paths = tuple(paths)
        self._rows: dict[tuple[str, ...], list[Row]] = {}
        for path in paths:
            self._put(read(path) if path.exists() else [])

    @property
    def rows(self) -> list[Row]:
        """In order of measurement, those of one subject together."""
        return [row for group in self._rows.values() for row in group]

    def add(self, rows: Sequence[Row]) -> None:
        """Everything measured of one variant; on disk when this returns."""
        self._put(rows)
        kept = self.rows
        for path in self._paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            _write(path, as_csv(kept) if path.suffix == ".csv" else as_json(kept))

    def _put(self, rows: Sequence[Row]) -> None:
        for new in rows:
            group = self._rows.setdefault(subject(new), [])
            group[:] = [*(old for old in group if not replaces(new, old)), new]


def read(path: Path) -> list[Row]:
    """The rows of a .json or .csv file; columns we do not know are passed by.

    Raises:
        InputError: no such file, or something in it is no row; the message says where.
    """
    try:
        text = path.read_text(encoding="utf-8")
        records = _csv_records(text) if path.suffix == ".csv" else json.loads(text)["rows"]
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, csv.Error) as error:
        raise InputError(f"{path}: is no file of rows that `bench` wrote: {error}") from error
    rows = []
    for number, record in enumerate(records, start=1):
        try:
            rows.append(_row(record))
        except (ValueError, TypeError, AttributeError) as error:
            raise InputError(f"{path}: row {number}: {error}") from error
    return rows


def as_json(rows: Iterable[Row]) -> str:
    """One object with the list "rows", a row a line."""
    lines = ",\n".join(json.dumps(asdict(row), allow_nan=False) for row in rows)
    return f'{{"rows": [\n{lines}\n]}}\n'


def as_csv(rows: Iterable[Row]) -> str:
    """A header and a line per row; missing values are empty."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    return out.getvalue()


def _csv_records(text: str) -> list[dict[str, Any]]:
    return list(csv.DictReader(io.StringIO(text), strict=True))


def _row(record: dict[str, Any]) -> Row:
    return Row(**{name: _value(name, record[name]) for name in COLUMNS if name in record})


def _value(name: str, value: Any) -> Any:
    kind = _TYPES[name]
    if kind == "str":
        return "" if value is None else str(value)
    return None if value in (None, "") else _PARSE[kind](value)


def _write(path: Path, text: str) -> None:
    made = path.with_name(f".{path.name}.new")
    made.write_text(text, encoding="utf-8", newline="")
    os.replace(made, path)
