"""MetaSchedule's own search over TVM's direct convolution, the peer `tvm-metaschedule`.

The rules of "cuda" are taken: those of "cuda-tensorcore" do not apply to float32.
"""

from __future__ import annotations

import fcntl
import functools
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvm_winograd.codegen import build
from tvm_winograd.deploy.libraries import tvm_version
from tvm_winograd.errors import UnsupportedError
from tvm_winograd.gpu import gpu_for
from tvm_winograd.shapes import ConvSpec, Epilogue

from .stock import Record, plain_trace, prim_func, stock_target

FAILED = 1e9  # MetaSchedule records a candidate that failed with 1e10 seconds
TRIALS_PER_ROUND = 32  # between two trainings of the cost model
_LOCK = ".measuring"
BUILD_SECONDS, RUN_SECONDS = 100.0, 60.0  # of one candidate


def build_candidate(arch: str, mod: Any, target: Any, params: Any) -> Any:
    """LocalBuilder's f_build: its own has no target in scope and fails."""
    return build.build(mod, gpu_for(arch), pipeline="tir")


def export_candidate(folder: str, executable: Any) -> str:
    """LocalBuilder's f_export."""
    made = tempfile.mkdtemp(dir=folder)
    return str(build.export(executable, Path(made, "candidate.so")))


def serial_runner(folder: Path, runner: Any) -> Any:
    """Makes a runner that waits for its results under a lock: one process measures at a time."""
    from tvm.ir.utils import derived_object
    from tvm.s_tir import meta_schedule as ms

    @derived_object
    class Serial(ms.runner.PyRunner):  # type: ignore[misc]
        def run(self, runner_inputs: list[Any]) -> list[Any]:
            with (folder / _LOCK).open("w") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                futures = list(runner.run(runner_inputs))
                results = [future.result() for future in futures]
            return [ms.runner.LocalRunnerFuture(_seconds(r), r.error_msg) for r in results]

    def _seconds(result: Any) -> list[float] | None:
        return None if result.run_secs is None else [float(s) for s in result.run_secs]

    return Serial()


@dataclass(frozen=True)
class Wanted:
    """What is searched for, on which GPU."""

    spec: ConvSpec
    epilogue: Epilogue
    arch: str
    gpu_name: str
    trials: int  # candidates


def search(
    wanted: Wanted,
    folder: Path,
    runner: Any,
    workers: int,
    keep: Callable[[Record], object] = lambda record: None,
) -> Record:
    """Finds the best of the candidates.

    Args:
        folder: where the lock is.  workers: processes that build.
        runner: a meta_schedule Runner, which measures on that GPU.
        keep: called with the best so far after each round; a kill loses the running one.
    Raises:
        UnsupportedError: not one of them ran.
    """

    def best(records: list[Any]) -> Record | None:
        good = [(seconds, r) for r in records if (seconds := _seconds_of(r)) < FAILED]
        if not good:
            return None
        seconds, record = min(good, key=lambda pair: pair[0])
        return Record(
            spec=wanted.spec.key(),
            epilogue=wanted.epilogue.key(),
            arch=wanted.arch,
            gpu=wanted.gpu_name,
            us=seconds * 1e6,
            trials=len(records),
            tvm=tvm_version(),
            trace=plain_trace(record.trace),
        )

    def after_a_round(records: list[Any]) -> None:
        if found := best(records):
            keep(found)

    func, runner = prim_func(wanted.spec, wanted.epilogue), serial_runner(folder, runner)
    records = _tune(func, wanted.arch, wanted.trials, runner, workers, after_a_round)
    if (found := best(records)) is None:
        raise UnsupportedError(f"{wanted.spec.key()}: all of {len(records)} candidates failed")
    return found


def _tune(
    func: Any,
    arch: str,
    trials: int,
    runner: Any,
    workers: int,
    after_a_round: Callable[[list[Any]], None],
) -> list[Any]:
    """Searches, and returns every TuningRecord."""
    from tvm.ir.utils import derived_object
    from tvm.s_tir import meta_schedule as ms

    database = ms.database.MemoryDatabase()

    @derived_object
    class Round(ms.measure_callback.PyMeasureCallback):  # type: ignore[misc]
        def apply(self, *results: Any) -> None:
            after_a_round(list(database.get_all_tuning_records()))

    usual = ("AddToDatabase", "RemoveBuildArtifact", "UpdateCostModel")
    callbacks = [getattr(ms.measure_callback, name)() for name in usual]
    with tempfile.TemporaryDirectory(prefix="stock-metaschedule-") as scratch:
        ms.tir_integration.tune_tir(
            func,
            stock_target(gpu_for(arch)),
            scratch,
            trials,
            num_trials_per_iter=min(trials, TRIALS_PER_ROUND),
            builder=local_builder(arch, scratch, workers),
            runner=runner,
            database=database,
            measure_callbacks=[*callbacks, Round()],
            space=cuda_space(),
            num_tuning_cores=workers,
            seed=0,
        )
    return list(database.get_all_tuning_records())


def _seconds_of(record: Any) -> float:
    """Returns the mean of one run, which the search went by."""
    seconds = [float(s) for s in record.run_secs or ()]
    return statistics.fmean(seconds) if seconds else float("inf")


def cuda_space() -> Any:
    """Makes the space of MetaSchedule's own rules for CUDA cores."""
    from tvm.s_tir import meta_schedule as ms

    return ms.space_generator.PostOrderApply(
        sch_rules="cuda", postprocs="cuda", mutator_probs="cuda"
    )


def local_builder(arch: str, scratch: str, workers: int) -> Any:
    """Makes a builder with `workers` processes, which writes into the folder `scratch`."""
    from tvm.s_tir import meta_schedule as ms

    return ms.builder.LocalBuilder(
        max_workers=workers,
        timeout_sec=BUILD_SECONDS,
        f_build=functools.partial(build_candidate, arch),
        f_export=functools.partial(export_candidate, scratch),
    )


def local_runner() -> Any:
    """Makes a runner that measures on this machine's first GPU."""
    from tvm.s_tir import meta_schedule as ms

    evaluator = ms.runner.EvaluatorConfig(number=1, repeat=3, min_repeat_ms=50)
    return ms.runner.LocalRunner(
        timeout_sec=RUN_SECONDS,
        evaluator_config=evaluator,
        initializer=build.ensure_cuda_codegen,  # loads the CUDA runtime of TVM
    )
