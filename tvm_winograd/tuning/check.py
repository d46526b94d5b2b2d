"""Whether the rows of a folder still mean something: legal, schedulable, right, buildable."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tvm.s_tir import ScheduleError

from ..codegen import build
from ..errors import TvmWinogradError
from ..gpu import Hardware, gpu_for, host_cpu, make_target
from ..tables import lookup as logs
from ..tables import store as log_store
from ..tables.lookup import MOCK, Row
from ..truth.tolerances import tolerance
from .records import kernel_of, scheduled


@dataclass(frozen=True)
class Checked:
    """What `logs check` found."""

    rows: int
    problems: list[str] = field(default_factory=list)  # one line each, with file and line

    def as_dict(self) -> dict[str, Any]:
        return {"rows": self.rows, "ok": not self.problems, "problems": self.problems}


def check_folder(
    folder: Path, *, compile: bool = False, progress: Callable[[str], None] = lambda text: None
) -> Checked:
    """Every row of every table below `folder`.

    Args:
        compile: also build each row's program, for GPUs without a GPU.
    """
    count, problems = 0, []
    for path in logs.tables(folder):
        rows, complaints = logs.read_table(path)
        count += len(rows)
        problems += complaints
        for row in rows:
            progress(f"{row.file} {row.spec} {row.epilogue}")
            problem = problem_of(row, compile=compile)
            if row.arch != path.parent.name:
                problem = f"a row for {row.arch}: move it, nothing looks for it here"
            if problem is not None:
                problems.append(f"{path.parent.name}/{row.file}: {problem}")
    return Checked(count, problems)


def problem_of(row: Row, *, compile: bool = False) -> str | None:
    """None, or what is wrong with a row."""
    if row.gpu == MOCK:
        return "its time is no measurement (--mock)"
    try:
        hardware = _hardware(row)
        kernel, _ = kernel_of(row, hardware)
        if row.algorithm not in ("", kernel.algorithm):
            return f"algorithm {row.algorithm!r}, but {kernel.name} is {kernel.algorithm}"
        spec = logs.spec_of(row.spec)
        if row.math != (math := kernel.math_of(spec)):
            return f"math {row.math!r}, but {kernel.name} computes with {math}"
        limit = tolerance(spec, kernel.algorithm, math)
        if row.error is not None and not row.error <= limit:
            return f"its error {row.error:.1e} is beyond {limit:.0e}"
        sch, _ = scheduled(row, hardware)
        if compile:
            with make_target(hardware):
                build.build(sch.mod, hardware, pipeline="tir", pass_config=kernel.pass_config)
    except TvmWinogradError as error:
        return str(error)
    except ScheduleError as error:
        return f"TVM cannot schedule it: {str(error).splitlines()[0]}"
    return None


def prune(folder: Path) -> tuple[int, int, list[str]]:
    """Rewrite every table with each key's best row that passes `problem_of`.

    Returns:
        (rows kept, rows dropped, complaints about unreadable lines, which go too).
    Raises:
        LogError: a table cannot be written; it is as it was.
    """
    kept = dropped = 0
    complaints: list[str] = []
    for path in logs.tables(folder):
        judged: dict[Row, bool] = {}
        counts: list[int] = []

        def change(
            rows: list[Row], judged: dict[Row, bool] = judged, counts: list[int] = counts
        ) -> list[Row]:
            """Rows that another process has added since are kept: nobody has looked at them."""
            good = log_store.best_rows(row for row in rows if judged.get(_content(row), True))
            counts += [len(good), len(rows) - len(good)]
            return good

        for row in logs.read_table(path)[0]:  # takes minutes: without the lock
            judged[_content(row)] = problem_of(row) is None
        complaints += log_store.update(path, change)
        kept, dropped = kept + counts[0], dropped + counts[1]
    return kept, dropped, complaints


def _content(row: Row) -> Row:
    """A row, wherever it stands in its file."""
    return replace(row, file="")


def _hardware(row: Row) -> Hardware:
    """What a row is for. Another CPU is this one under its name: LLVM can compile for it."""
    return replace(host_cpu(), cpu=row.gpu) if row.arch == "cpu" else gpu_for(row.arch)
