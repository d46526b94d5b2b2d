"""TVM without us as providers: its own direct convolution under dlight or MetaSchedule.

The convolution is topi's conv2d NCHW with the epilogue behind it, as one PrimFunc. MetaSchedule's
schedules come from a folder of records that `benchmarks/stock_metaschedule.py` wrote.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tvm_winograd.codegen import build
from tvm_winograd.errors import InputError, UnsupportedError
from tvm_winograd.gpu import Gpu, make_target
from tvm_winograd.measure.problem import Problem
from tvm_winograd.measure.row_files import write_whole
from tvm_winograd.passes.apply_schedules import schedule_function
from tvm_winograd.shapes import ConvSpec, Epilogue

from .provider import PEER_LIMIT, Bench, Prepared, Variant

_LIBRARY, _HOW = "conv.so", "schedule.txt"


@dataclass(frozen=True)
class Record:
    """The best schedule MetaSchedule found for a convolution."""

    spec: str
    epilogue: str
    arch: str
    gpu: str
    us: float  # as the search measured it
    trials: int
    tvm: str
    trace: Any  # by plain_trace


def stock_target(gpu: Gpu) -> Any:
    """Makes a target as a user of stock TVM gives it, with 48 KB of shared memory a block.

    Its kernels declare shared memory statically: of candidates that were allowed more, three in
    four did not compile.
    """
    return make_target(replace(gpu, shared_per_block=48 * 1024))


def prim_func(spec: ConvSpec, epilogue: Epilogue) -> Any:
    """Makes main(X, W[, B][, R], O), unscheduled, NCHW.

    Raises:
        UnsupportedError: groups.
    """
    from tvm import te, topi

    if spec.groups != 1:
        raise UnsupportedError(f"groups={spec.groups}: topi's conv2d_nchw has none")
    x = te.placeholder((spec.n, spec.c, spec.h, spec.w), spec.dtype, name="X")
    w = te.placeholder(spec.weight_shape, spec.dtype, name="W")
    bias = te.placeholder((spec.k,), spec.acc, name="B")
    residual = te.placeholder((spec.n, spec.k, spec.oh, spec.ow), spec.out_dtype, name="R")
    y = topi.nn.conv2d_nchw(x, w, spec.strides, list(spec.padding), spec.dilations)
    arguments = [x, w]
    if epilogue.bias:
        y = topi.add(y, topi.reshape(bias, (1, spec.k, 1, 1)))
        arguments.append(bias)
    if epilogue.residual:
        y = topi.add(y, residual)
        arguments.append(residual)
    if applied := epilogue.applied:
        y = te.compute(y.shape, lambda *index: applied.tir(y[index]), name="compute")
    return te.create_prim_func([*arguments, y])


def scheduled(
    spec: ConvSpec, epilogue: Epilogue, gpu: Gpu, records: Path | None = None
) -> tuple[Any, str]:
    """Schedules the PrimFunc: (ready to build, how it was scheduled).

    Args:
        records: folder of MetaSchedule's; dlight schedules if none is given.
    Raises:
        UnsupportedError: no record of this convolution on this architecture; groups.
    """
    from tvm import s_tir
    from tvm.s_tir.schedule import Trace

    if records is None:
        with stock_target(gpu):
            done, entry = schedule_function(prim_func(spec, epilogue), None, gpu)
        return done, entry["schedule"]
    record = read_record(records, spec, epilogue)
    if record.arch != gpu.arch:
        raise UnsupportedError(f"its record is of {record.arch}")
    schedule = s_tir.Schedule(prim_func(spec, epilogue))
    with stock_target(gpu):
        Trace.apply_json_to_schedule(record.trace, schedule)
    how = f"{record.trials} trials, {record.us:.1f} us in the search"
    return schedule.mod["main"], how


@dataclass(frozen=True)
class StockBuild:
    """Compiles what `scheduled` gives, into a library and a text that says how."""

    spec: ConvSpec
    epilogue: Epilogue
    gpu: Gpu
    records: Path | None

    def __call__(self, folder: Path) -> None:
        func, how = scheduled(self.spec, self.epilogue, self.gpu, self.records)
        build.export(build.build(func, self.gpu, pipeline="tir"), folder / _LIBRARY)
        (folder / _HOW).write_text(how, encoding="utf-8")


class Dlight:
    """dlight's default schedules: the first of Matmul, GEMV, Reduction, GeneralReduction and
    Fallback that applies."""

    name, ours = "tvm-dlight", False
    records: Path | None = None

    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    def available(self) -> str | None:
        return None

    def variants(self, spec: ConvSpec, epilogue: Epilogue) -> Iterator[Variant]:
        gpu = self._bench.gpu
        if not isinstance(gpu, Gpu):
            raise UnsupportedError(f"{self.name} is measured on GPUs, this is {gpu.arch}")
        compiled = partial(StockBuild, spec, epilogue, gpu, self.records)
        yield Variant("", _prepare, compiled)


class MetaSchedule(Dlight):
    """The best of MetaSchedule's own search over topi's convolution."""

    name = "tvm-metaschedule"

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        self.records = bench.stock

    def available(self) -> str | None:
        if self.records is None:
            return "no folder of MetaSchedule's records was given (--stock DIR)"
        return None if self.records.is_dir() else f"{self.records}: no such folder"


def _prepare(problem: Problem, folder: Path | None) -> Prepared:
    import tvm

    assert folder is not None
    function = tvm.runtime.load_module(str(folder / _LIBRARY))["main"]
    arguments = [*problem.tensors(), out := problem.poisoned()]
    return Prepared(
        call=lambda: function(*arguments),
        output=out.numpy,
        algorithm=PEER_LIMIT,
        config=f"topi conv2d_nchw, {(folder / _HOW).read_text(encoding='utf-8')}",
    )


def plain_trace(trace: Any) -> Any:
    """Turns a tvm.s_tir.schedule.Trace into plain JSON values; its own JSON holds TVM's numbers."""
    return json.loads(json.dumps(trace.as_json(), default=lambda number: number.value))


def record_path(folder: Path, spec: ConvSpec, epilogue: Epilogue) -> Path:
    """Names the file of a convolution's record."""
    return folder / f"{spec.key()}-{epilogue.key()}.json"


def write_record(folder: Path, record: Record) -> Path:
    """Writes its file, whole or not at all."""
    spec, epilogue = ConvSpec.from_key(record.spec), Epilogue.from_key(record.epilogue)
    path = record_path(folder, spec, epilogue)
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(asdict(record)))
    return path


def read_record(folder: Path, spec: ConvSpec, epilogue: Epilogue) -> Record:
    """Raises:
    UnsupportedError: there is none.  InputError: it is damaged.
    """
    path = record_path(folder, spec, epilogue)
    if not path.is_file():
        raise UnsupportedError(  # a row's note: without the folder of this machine
            f"no record {path.name} there: python benchmarks/stock_metaschedule.py --out DIR "
            f"{spec.key()}"
        )
    try:
        return Record(**json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise InputError(f"{path}: is no record of MetaSchedule's: {error}") from error
