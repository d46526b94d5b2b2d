"""MetaSchedule databases made from the readable tables.

The table is the truth: a database's key is the exact program (batch, epilogue, index types) and
ignores the target, so its records are made anew from rows whenever something wants them.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import tvm
from tvm import s_tir
from tvm.s_tir import meta_schedule as ms

from tvm_winograd.schedules import KERNELS
from tvm_winograd.schedules.base.kernel import Kernel

from ..errors import UnsupportedError
from ..gpu import Hardware, make_target
from ..shapes import Epilogue
from ..tables.lookup import Row, spec_of
from .spaces import workload_of


def write_database(folder: Path, rows: Iterable[Row], hardware: Hardware) -> Any:
    """A JSONDatabase in `folder` with a record per row of `hardware`.

    Raises:
        UnsupportedError: a row's kernel or config no longer exists (`logs check` finds them).
    """
    folder.mkdir(parents=True, exist_ok=True)
    database = ms.database.JSONDatabase(work_dir=str(folder))
    for row in rows:
        if row.arch != hardware.arch:
            continue
        sch, program = scheduled(row, hardware)
        record = ms.database.TuningRecord(
            sch.trace,
            database.commit_workload(program),
            [row.us * 1e-6],
            make_target(hardware),
            ms.arg_info.ArgInfo.from_prim_func(program["main"]),
        )
        database.commit_tuning_record(record)
    return database


def scheduled(row: Row, hardware: Hardware) -> tuple[s_tir.Schedule, tvm.IRModule]:
    """(the row's schedule, the unscheduled program it started from).

    Raises:
        UnsupportedError: the kernel or config does not exist or is illegal here.
    """
    kernel, config = kernel_of(row, hardware)
    spec, epilogue = spec_of(row.spec), Epilogue.from_key(row.epilogue)
    if reason := kernel.supports(spec, epilogue, hardware):
        raise UnsupportedError(f"{row.kernel} does not compute {row.spec}: {reason}")
    if reason := kernel.illegal(config, spec, hardware):
        raise UnsupportedError(f"{row.kernel} with {row.config}: {reason}")
    program = workload_of(kernel, config, spec, epilogue)
    sch = s_tir.Schedule(program)
    if kernel.schedule is None:
        raise UnsupportedError(f"{row.kernel} is scheduled by TVM's dlight: no trace")
    with make_target(hardware):
        kernel.schedule(sch, config, hardware)
    return sch, program


def kernel_of(row: Row, hardware: Hardware) -> tuple[Kernel, Any]:
    """(kernel, config) that a row means.

    Raises:
        UnsupportedError: there is no such kernel, or no such config of it.
    """
    for kernel in KERNELS:
        if kernel.name == row.kernel and kernel.target == hardware.kind:
            return kernel, kernel.make_config(row.config)
    names = ", ".join(k.name for k in KERNELS if k.target == hardware.kind)
    raise UnsupportedError(f"kernel {row.kernel!r}: on {hardware.arch} there are {names}")
