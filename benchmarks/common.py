"""What the benchmark scripts share: how they end, how they say what they do."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict

from tvm_winograd import TvmWinogradError
from tvm_winograd.bench.conv.rows import Row
from tvm_winograd.choose.select import Choice
from tvm_winograd.gpu import Cpu
from tvm_winograd.measure import provenance
from tvm_winograd.measure.conditions import Conditions
from tvm_winograd.schedules.base.kernel import Kernel


def exit_code(main: Callable[[], int | None]) -> int:
    """Runs a benchmark: main's exit code, or 2 with a line where it ends with an error of ours."""
    try:
        return main() or 0
    except TvmWinogradError as error:
        print(error, file=sys.stderr)
        return 2


def progress(text: str) -> None:
    """Says what is being done, apart from the tables on stdout."""
    print(text, file=sys.stderr, flush=True)


def choice_of(kernel: Kernel, config: object) -> Choice:
    """Names a kernel and config for `Listed`."""
    return Choice(kernel, config, "explicit", "benchmark")


def on_this_cpu(cpu: Cpu) -> Conditions:
    """Describes this machine where no GPU is used."""
    return Conditions(**asdict(provenance.collect(cpu)))


def cell(row: Row | None) -> str:
    """us (TFLOP/s); empty without a time."""
    return f"{row.us:.1f} ({row.tflops:.1f})" if row and row.us else ""


def broken(rows: list[Row]) -> list[str]:
    """Writes a line about each row of ours that broke or is wrong."""
    bad = [row for row in rows if row.provider == "ours" and row.status in ("failed", "wrong")]
    return [f"{row.spec} {row.name}: {row.status}: {row.note}" for row in bad]
