"""Writing the tables of `lookup.py`: several writers, full disks and kills leave them whole.

A write takes the table's lock, reads what is there now, changes it, writes a new file beside it
and renames: at every moment the table is the old or the new one.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import LogError
from . import lookup as logs
from .lookup import COLUMNS, Row

_LONGEST_FILE = 120  # characters of a name
_LOCK_SECONDS = 60.0  # a write takes milliseconds


def slug(gpu: str) -> str:
    """A file name for a GPU: "NVIDIA H200" -> "nvidia-h200"."""
    return re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-")[:_LONGEST_FILE] or "unknown"


def table_path(folder: Path, arch: str, gpu: str) -> Path:
    """Raises:
    LogError: `arch` is no name of a folder.
    """
    if not logs.ARCH.fullmatch(arch):
        raise LogError(f"arch={arch[:80]!r}: letters, digits, _ and - are needed")
    return folder / arch / f"{slug(gpu)}.csv"


def key(row: Row) -> tuple[str, ...]:
    """What a table keeps one row of: every kernel's best for a convolution on a GPU."""
    return (row.gpu, row.arch, row.spec, row.epilogue, row.kernel, row.math)


def best_rows(rows: Iterable[Row]) -> list[Row]:
    """The best row of each key, sorted: right before wrong, measured before transferred, fast."""
    best: dict[tuple[str, ...], Row] = {}
    for row in rows:
        if key(row) not in best or _rank(row) < _rank(best[key(row)]):
            best[key(row)] = row
    return sorted(best.values(), key=_order)


def merge(folder: Path, rows: Iterable[Row]) -> list[str]:
    """Merge rows into the tables of `folder`; returns complaints about lines that were there.

    Raises:
        LogError: a table cannot be written; it is as it was.
    """
    by_table: dict[Path, list[Row]] = {}
    for row in rows:
        by_table.setdefault(table_path(folder, row.arch, row.gpu), []).append(row)
    complaints = []
    for path, new in by_table.items():
        complaints += update(path, lambda old, new=new: best_rows([*old, *new]))  # type: ignore[misc]
    return complaints


def update(path: Path, change: Callable[[list[Row]], list[Row]]) -> list[str]:
    """Replace a table by `change(its rows)`; returns complaints about unreadable lines.

    The lock is held meanwhile: `change` must not take long.

    Raises:
        LogError: it cannot be locked or written; it is as it was.
    """
    with locked(path):
        old, complaints = logs.read_table(path) if path.exists() else ([], [])
        _replace(path, table_text(change(old)))
    return complaints


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of `path`, a file beside it; its folder is made.

    Raises:
        LogError: another process holds it, or the folder cannot be written.
    """
    from filelock import FileLock, Timeout

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path.with_name(f".{path.name}.lock"))
        lock.acquire(timeout=_LOCK_SECONDS)
    except Timeout as error:
        raise LogError(
            f"{path}: another process has held its lock for {_LOCK_SECONDS:.0f} s; end it, or "
            "write to another folder"
        ) from error
    except OSError as error:
        raise LogError(f"{path.parent}: cannot be written: {error.strerror}") from error
    try:
        yield
    finally:
        lock.release()


def table_text(rows: Iterable[Row]) -> str:
    """The rows as CSV, one line each, columns of other versions behind ours."""
    rows = list(rows)
    others = sorted({name for row in rows for name in row.extra})
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*COLUMNS, *others])
    for row in rows:
        cells = [_cell(getattr(row, name)) for name in COLUMNS]
        writer.writerow([*cells, *(_cell(row.extra.get(name, "")) for name in others)])
    return out.getvalue()


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return json.dumps(value)
    if isinstance(value, float):
        return f"{value:.6g}"
    return "" if value is None else " ".join(str(value).splitlines())


def _rank(row: Row) -> tuple[bool, bool, float]:
    return (row.wrong, row.origin != "measured", row.us)


def _order(row: Row) -> tuple[Any, ...]:
    """Layers together, batches in order, then epilogues, then the fastest."""
    spec = logs.spec_of(row.spec)
    layer = (spec.c, spec.k, -spec.h, -spec.w, spec.r, spec.s, row.spec.split("_", 1)[1])
    return (*layer, spec.n, row.epilogue, row.us, row.kernel, row.gpu)


def _replace(path: Path, text: str) -> None:
    """Write `path` whole or not at all. The caller holds the lock."""
    made = path.with_name(f".{path.name}.new")
    try:
        with made.open("w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(made, path)
    except OSError as error:
        made.unlink(missing_ok=True)
        raise LogError(
            f"{path}: cannot be written ({error.strerror}); the table is as it was. Free some "
            "space or choose another folder, then go on"
        ) from error
