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

from .. import build
from ..errors import InputError, UnsupportedError
from ..gpu import Gpu, make_target
from ..passes.apply_schedules import schedule_function
from ..shapes import ConvSpec, Epilogue
from .problem import Problem
from .provider import PEER_LIMIT, Bench, Prepared, Variant


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
    """A target as a user of stock TVM gives it, with 48 KB of shared memory a block.

    Its kernels declare shared memory statically: of candidates that were allowed more, three in
    four did not compile.
    """
    return make_target(replace(gpu, shared_per_block=48 * 1024))


def prim_func(spec: ConvSpec, epilogue: Epilogue) -> Any:
    """main(X, W[, B][, R], O), unscheduled, NCHW.

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
    y = topi.nn.conv2d_nchw(x, w, spec.stride, list(spec.padding), spec.dilation)
    arguments = [x, w]
    if epilogue.bias:
        y = topi.add(y, topi.reshape(bias, (1, spec.k, 1, 1)))
        arguments.append(bias)
    if epilogue.residual:
        y = topi.add(y, residual)
        arguments.append(residual)
    y = topi.nn.relu(y) if epilogue.relu else y
    y = topi.clip(y, 0.0, 6.0) if epilogue.relu6 else y
    return te.create_prim_func([*arguments, y])


class _Stock:
    """What both have in common: a scheduled PrimFunc is built and run."""

    name = ""
    ours = False

    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    def available(self) -> str | None:
        return None

    def variants(self, problem: Problem) -> Iterator[Variant]:
        yield Variant("", partial(self._prepare, problem))

    def scheduled(self, spec: ConvSpec, epilogue: Epilogue) -> tuple[Any, str]:
        """The PrimFunc, ready to build, and how it was scheduled."""
        raise NotImplementedError

    def _prepare(self, problem: Problem) -> Prepared:
        func, config = self.scheduled(problem.spec, problem.epilogue)
        function = build.build(func, self._bench.gpu, pipeline="tir")["main"]
        arguments = [*problem.tensors(), out := problem.poisoned()]
        return Prepared(
            call=lambda: function(*arguments),
            output=out.numpy,
            algorithm=PEER_LIMIT,
            config=f"topi conv2d_nchw, {config}",
        )


class Dlight(_Stock):
    """dlight's default schedules: the first of Matmul, GEMV, Reduction, GeneralReduction and
    Fallback that applies."""

    name = "tvm-dlight"

    def scheduled(self, spec: ConvSpec, epilogue: Epilogue) -> tuple[Any, str]:
        with stock_target(self._bench.gpu):
            func = prim_func(spec, epilogue)
            done, how = schedule_function(func, None, self._bench.gpu)
        return done, how["schedule"]


class MetaSchedule(_Stock):
    """The best of MetaSchedule's own search over topi's convolution."""

    name = "tvm-metaschedule"

    def available(self) -> str | None:
        folder = self._bench.stock
        if folder is None:
            return "no folder of MetaSchedule's records was given (--stock DIR)"
        return None if folder.is_dir() else f"{folder}: no such folder"

    def scheduled(self, spec: ConvSpec, epilogue: Epilogue) -> tuple[Any, str]:
        from tvm import s_tir
        from tvm.s_tir.schedule import Trace

        assert self._bench.stock is not None
        record = read_record(self._bench.stock, spec, epilogue)
        if record.arch != self._bench.gpu.arch:
            raise UnsupportedError(f"its record is of {record.arch}")
        schedule = s_tir.Schedule(prim_func(spec, epilogue))
        with stock_target(self._bench.gpu):
            Trace.apply_json_to_schedule(record.trace, schedule)
        how = f"{record.trials} trials, {record.us:.1f} us in the search"
        return schedule.mod["main"], how


def plain_trace(trace: Any) -> Any:
    """A tvm.s_tir.schedule.Trace as plain JSON values; its own JSON holds TVM's numbers."""
    return json.loads(json.dumps(trace.as_json(), default=lambda number: number.value))


def record_path(folder: Path, spec: ConvSpec, epilogue: Epilogue) -> Path:
    """Where a convolution's record is."""
    return folder / f"{spec.key()}-{epilogue.key()}.json"


def write_record(folder: Path, record: Record) -> Path:
    """Its file, whole or not at all."""
    spec, epilogue = ConvSpec.from_key(record.spec), Epilogue.from_key(record.epilogue)
    path = record_path(folder, spec, epilogue)
    folder.mkdir(parents=True, exist_ok=True)
    made = path.with_name(f".{path.name}.new")
    made.write_text(json.dumps(asdict(record)), encoding="utf-8")
    made.replace(path)
    return path


def read_record(folder: Path, spec: ConvSpec, epilogue: Epilogue) -> Record:
    """Raises:
    UnsupportedError: there is none.  InputError: it is damaged.
    """
    path = record_path(folder, spec, epilogue)
    if not path.is_file():
        raise UnsupportedError(
            f"no record {path}: python benchmarks/stock_metaschedule.py --out {folder} {spec.key()}"
        )
    try:
        return Record(**json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise InputError(f"{path}: is no record of MetaSchedule's: {error}") from error
