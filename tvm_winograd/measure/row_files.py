"""Rows of any kind in JSON and CSV files that are whole at every moment."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, Generic, TypeVar

from ..errors import InputError

R = TypeVar("R")
_PARSE = {"str": str, "float": float, "int": int}


@dataclass(frozen=True)
class RowKind(Generic[R]):
    """A frozen dataclass of texts and numbers (or None), and which rows are about the same."""

    type: type[R]
    subject: Callable[[R], tuple[str, ...]]  # what was measured
    replaces: Callable[[R, R], bool]  # whether a new row ends the life of an old one of its subject

    @property
    def columns(self) -> dict[str, str]:
        """Name -> "str", "float" or "int"; what a whole session shares, which is kw_only, last."""
        found = sorted(fields(self.type), key=lambda field: bool(field.kw_only))  # type: ignore[arg-type]
        return {f.name: str(f.type).split(" ")[0] for f in found}

    def read(self, path: Path) -> list[R]:
        """Reads the rows of a .json or .csv file; columns we do not know are passed by.

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
                rows.append(self._row(record))
            except (ValueError, TypeError, AttributeError) as error:
                raise InputError(f"{path}: row {number}: {error}") from error
        return rows

    def as_json(self, rows: Iterable[R]) -> str:
        """Writes one object with the list "rows", a row a line."""
        lines = ",\n".join(json.dumps(self.record(row), allow_nan=False) for row in rows)
        return f'{{"rows": [\n{lines}\n]}}\n'

    def as_csv(self, rows: Iterable[R]) -> str:
        """Writes a header and a line per row; missing values are empty."""
        out = io.StringIO()
        writer = csv.DictWriter(out, list(self.columns), lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.record(row) for row in rows)
        return out.getvalue()

    def record(self, row: R) -> dict[str, Any]:
        """Makes a dictionary of a row's columns."""
        return {name: getattr(row, name) for name in self.columns}

    def _row(self, record: dict[str, Any]) -> R:
        kinds = self.columns
        needed = [f.name for f in fields(self.type) if f.default is MISSING]  # type: ignore[arg-type]
        if lacking := [name for name in needed if name not in record]:
            raise InputError(f"no {', '.join(lacking)}: a row of `bench` has {', '.join(needed)}")
        return self.type(**{n: _value(kinds[n], record[n]) for n in kinds if n in record})


class Store(Generic[R]):
    """Rows in memory and in files, .json or .csv; what the files held before is kept."""

    def __init__(self, kind: RowKind[R], paths: Sequence[Path] = ()) -> None:
        """Raises:
        InputError: a file of another kind, or one that cannot be read.
        """
        for path in paths:
            if path.suffix not in (".json", ".csv"):
                raise InputError(f"{path}: a file that ends in .json or .csv is needed")
        self._kind, self._paths = kind, tuple(paths)
        self._rows: dict[tuple[str, ...], list[R]] = {}
        for path in paths:
            self._put(kind.read(path) if path.exists() else [])

    @property
    def rows(self) -> list[R]:
        """In order of measurement, those of one subject together."""
        return [row for group in self._rows.values() for row in group]

    def add(self, rows: Sequence[R]) -> None:
        """Keeps what was measured together, on disk when this returns: it replaces older rows, not
        each other."""
        self._put(rows)
        kept = self.rows
        for path in self._paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            form = self._kind.as_csv if path.suffix == ".csv" else self._kind.as_json
            write_whole(path, form(kept))

    def _put(self, rows: Sequence[R]) -> None:
        for new in rows:
            group = self._rows.setdefault(self._kind.subject(new), [])
            group[:] = [old for old in group if not self._kind.replaces(new, old)]
        for new in rows:
            self._rows[self._kind.subject(new)].append(new)


def _csv_records(text: str) -> list[dict[str, Any]]:
    return list(csv.DictReader(io.StringIO(text), strict=True))


def _value(kind: str, value: Any) -> Any:
    if kind == "str":
        return "" if value is None else str(value)
    return None if value in (None, "") else _PARSE[kind](value)


def write_whole(path: Path, text: str) -> None:
    """Replaces a file: it is the old or the new one at every moment."""
    made = path.with_name(f".{path.name}.new")
    made.write_text(text, encoding="utf-8", newline="")
    os.replace(made, path)
