"""The readable tables of tuning results: one CSV per GPU, <folder>/<arch>/<gpu>.csv.

A row says how fast one config computes one convolution with its epilogue, and how exactly. The
text is the truth: a damaged line costs that line only and is reported, columns of other versions
are kept, optional ones may be missing. `store.py` writes; this file reads and looks up.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from .. import precision
from ..errors import InputError
from ..shapes import ConvSpec, Epilogue
from ..truth.tolerances import limit_of

REQUIRED = ("gpu", "arch", "spec", "epilogue", "kernel", "config", "us")
# In the order of the file.
COLUMNS = (
    "gpu", "arch", "spec", "epilogue", "algorithm", "kernel", "math", "config", "us", "error",
    "trials", "driver", "tvm", "version", "commit", "date", "origin",
)  # fmt: skip
ORIGINS = ("measured", "transferred")
MOCK = "mock"  # the GPU of made-up times
# What a row is for becomes a folder and a file: it must be a name, and no path.
ARCH = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_LONGEST_NAME = 120  # of a GPU, characters
# A config tuned for another batch is taken when the batches differ by at most this factor: blocks
# that fill a GPU at batch 128 leave most of it idle at batch 1 (19 instead of 7 us, H200).
NEAREST = 4


@dataclass(frozen=True)
class Row:
    """One result. `config` is the kernel's config as a dict."""

    gpu: str  # the GPU's (or CPU's) name; an H100 and an H200 are both sm_90
    arch: str
    spec: str  # ConvSpec.key()
    epilogue: str  # Epilogue.key()
    kernel: str
    config: dict[str, Any] = field(hash=False)
    us: float  # microseconds, median
    algorithm: str = ""
    error: float | None = None  # relative Frobenius, against float64
    trials: int = 0  # candidates measured to find this one
    driver: str = ""
    tvm: str = ""
    version: str = ""  # of this package
    commit: str = ""
    date: str = ""  # ISO, UTC
    origin: str = "measured"  # or "transferred": measured with another epilogue
    math: str = ""  # of precision.NAMES; what is left out in old tables is filled in
    extra: dict[str, str] = field(default_factory=dict, hash=False)  # columns of other versions
    file: str = ""  # where the row stands
    place: int = 0  # which folder it came from: lower ones are looked at first

    def __post_init__(self) -> None:
        if not self.math:
            object.__setattr__(self, "math", precision.plain(spec_of(self.spec).dtype))

    @property
    def wrong(self) -> bool:
        """Its error is known and beyond the limit of its algorithm: never to be used."""
        limit = limit_of(spec_of(self.spec).out_dtype, self.algorithm, self.math)
        return self.error is not None and limit is not None and not self.error <= limit


class Rows(list[Row]):
    """Rows with an index, made once: a table of 100,000 rows is not searched for every layer."""

    @cached_property
    def by_layer(self) -> dict[str, list[Row]]:
        """The rows of each layer: a convolution whose batch is left out."""
        found: dict[str, list[Row]] = {}
        for row in self:
            found.setdefault(_layer(row.spec), []).append(row)
        return found


def _layer(key: str) -> str:
    """A ConvSpec's key without its batch, which stands first."""
    return key.lstrip("n").lstrip("0123456789")


def _of_layer(rows: Iterable[Row], spec: ConvSpec) -> Iterable[Row]:
    """Those that may be of this layer with any batch."""
    return rows.by_layer.get(_layer(spec.key()), []) if isinstance(rows, Rows) else rows


def folder_of(path: str | Path) -> Path:
    """A folder of tables that a user names.

    Raises:
        InputError: there is none.
    """
    if not (folder := Path(path)).is_dir():
        raise InputError(f"{path} is no folder; give a folder of tables")
    return folder


def shipped_folder() -> Path:
    """The tables that come with the package."""
    from importlib.util import find_spec

    spec = find_spec("tvm_winograd.tune_logs")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent


def tables(folder: Path, arch: str | None = None) -> list[Path]:
    """The tables below `folder`, all architectures unless one is named."""
    return sorted(folder.glob(f"{arch or '*'}/*.csv"))


def read_folder(folder: Path, arch: str | None = None) -> tuple[list[Row], list[str]]:
    """(rows, complaints) of every table for `arch` below `folder`."""
    return read_tables(tables(folder, arch))


def read_places(folders: Iterable[Path], arch: str) -> tuple[Rows, list[str]]:
    """(rows, complaints) of several folders, the first to be preferred."""
    rows = Rows()
    complaints: list[str] = []
    for place, folder in enumerate(folders):
        got, bad = read_folder(folder, arch)
        rows += [replace(row, place=place) for row in got]
        complaints += bad
    return rows, complaints


def read_tables(paths: Iterable[Path]) -> tuple[list[Row], list[str]]:
    """(rows, complaints) of several tables."""
    rows = Rows()
    complaints: list[str] = []
    for path in paths:
        got, bad = read_table(path)
        rows += got
        complaints += bad
    return rows, complaints


def read_table(path: Path) -> tuple[list[Row], list[str]]:
    """(rows, complaints) of one table.

    Line by line, not record by record: a quote that a crash left open ends with its line.
    """
    text = path.read_bytes().decode("utf-8-sig", errors="replace")
    lines = text.replace("\r\n", "\n").split("\n")
    try:
        header = _cells(lines[0])
    except csv.Error as error:
        return [], [f"{path}:1: table left out: {error}"]
    if missing := [name for name in REQUIRED if name not in header]:
        return [], [f"{path}:1: table left out: its header has no {', '.join(missing)}"]
    rows, complaints = [], []
    for number, line in enumerate(lines[1:], start=2):
        if not line.strip():
            continue
        try:
            rows.append(_row(header, _cells(line), f"{path.name}:{number}"))
        except (csv.Error, ValueError, RecursionError, OverflowError) as error:
            complaints.append(f"{path}:{number}: line left out: {str(error)[:200]}")
    return rows, complaints


def lookup(
    rows: Iterable[Row],
    spec: ConvSpec,
    epilogue: Epilogue,
    gpu_name: str | None = None,
    maths: Collection[str] | None = None,
) -> list[Row]:
    """Rows for exactly this convolution, best first: `gpu_name`'s own, then the nearer folder's,
    then measured ones, then the fastest.

    Args:
        maths: the arithmetics that are allowed, of precision.NAMES; by default those of
            float32 accuracy.
    """
    may = precision.allowed("float32", spec.dtype) if maths is None else maths
    wanted = spec.key(), epilogue.key()
    found = [r for r in _of_layer(rows, spec) if (r.spec, r.epilogue) == wanted and r.math in may]
    return sorted(found, key=lambda row: _preference(row, gpu_name))


def lookup_nearest(
    rows: Iterable[Row],
    spec: ConvSpec,
    epilogue: Epilogue,
    gpu_name: str | None = None,
    maths: Collection[str] | None = None,
) -> list[Row]:
    """Rows for the same layer with another batch or epilogue, nearest first; `maths` as above."""
    may = precision.allowed("float32", spec.dtype) if maths is None else maths
    near: list[tuple[Any, ...]] = []
    for row in _of_layer(rows, spec):
        if row.math not in may:
            continue
        other = spec_of(row.spec)
        factor = max(other.n / spec.n, spec.n / other.n)
        same = other.n == spec.n and row.epilogue == epilogue.key()
        if factor <= NEAREST and not same and replace(other, n=spec.n) == spec:
            order = (row.gpu != gpu_name, factor, other.n, row.epilogue != epilogue.key())
            near.append((*order, *_preference(row, gpu_name), len(near), row))
    return [entry[-1] for entry in sorted(near, key=lambda entry: entry[:-1])]


@lru_cache(maxsize=4096)
def spec_of(key: str) -> ConvSpec:
    """ConvSpec.from_key, remembered."""
    return ConvSpec.from_key(key)


def _preference(row: Row, gpu_name: str | None) -> tuple[Any, ...]:
    return (row.gpu != gpu_name, row.place, row.origin != "measured", row.us)


def _cells(line: str) -> list[str]:
    return next(csv.reader([line], strict=True), [])


def _row(header: list[str], cells: list[str], where: str) -> Row:
    if len(cells) != len(header):
        raise ValueError(f"{len(cells)} cells under {len(header)} columns (cut off?)")
    record = dict(zip(header, cells, strict=True))
    if empty := [name for name in REQUIRED if not record[name]]:
        raise ValueError(f"no {', '.join(empty)}")
    if not ARCH.fullmatch(record["arch"]):
        raise ValueError(f"arch={record['arch'][:80]!r}: letters, digits, _ and - are needed")
    if len(record["gpu"]) > _LONGEST_NAME or not record["gpu"].isprintable():
        raise ValueError(f"gpu={record['gpu'][:80]!r}: up to {_LONGEST_NAME} characters are needed")
    spec_of(record["spec"])
    Epilogue.from_key(record["epilogue"])
    known = {name: record[name] for name in COLUMNS if name in record}
    numbers = {
        "config": _config(known.pop("config")),
        "us": _microseconds(known.pop("us")),
        "error": _error(known.pop("error", "")),
        "trials": _count(known.pop("trials", "")),
    }
    origin = known.pop("origin", "") or "measured"
    if origin not in ORIGINS:
        raise ValueError(f"origin={origin!r} is none of {', '.join(ORIGINS)}")
    extra = {name: text for name, text in record.items() if name not in COLUMNS}
    return Row(**known, **numbers, origin=origin, extra=extra, file=where)  # type: ignore[arg-type]


def _config(text: str) -> dict[str, Any]:
    config = json.loads(text)
    if not isinstance(config, dict):
        raise ValueError(f"config is no JSON object: {text[:80]!r}")
    for name, value in config.items():
        if not isinstance(value, str | int | float | bool | None):
            raise ValueError(f"config: {name} is a {type(value).__name__}, not a number or a text")
    return config


def _microseconds(text: str) -> float:
    us = float(text)
    if not 0 < us < math.inf:
        raise ValueError(f"us={text}: a positive number is needed")
    return us


def _error(text: str) -> float | None:
    if text and float(text) < 0:
        raise ValueError(f"error={text}: a number that is not negative is needed")
    return float(text) if text else None


def _count(text: str) -> int:
    if text and not re.fullmatch(r"\d{1,15}", text.strip()):
        raise ValueError(f"trials={text[:40]!r}: a number is needed")
    return int(text or 0)
