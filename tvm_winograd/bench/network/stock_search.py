"""MetaSchedule's own search over a whole network: the databases of the peer `tvm-metaschedule`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from tvm_winograd.errors import UnsupportedError
from tvm_winograd.frontend import Model
from tvm_winograd.gpu import Gpu

from ..conv.stock import stock_target
from ..conv.stock_search import FAILED, TRIALS_PER_ROUND, cuda_space, local_builder
from .stock import database_folder, legalized


def search(
    model: Model,
    gpu: Gpu,
    trials: int,
    out: Path,
    runner: Any,
    workers: int,
    builder: Any = None,
) -> tuple[Path, int, int]:
    """Tunes all functions of a network, those that take the longest the most.

    Args:
        trials: of all functions together; each gets one round, the rest is divided by gain.
        out: where the database's folder is made; one that is there is continued.
        runner: a meta_schedule Runner on that GPU.  workers: processes that build.
        builder: a meta_schedule Builder; `local_builder` if not given.
    Returns:
        The database's folder, its functions with a schedule, and all functions.
    Raises:
        UnsupportedError: not one candidate ran.
    """
    from tvm.s_tir import meta_schedule as ms

    folder, mod = database_folder(out, model, gpu.arch), legalized(model, gpu)
    folder.mkdir(parents=True, exist_ok=True)
    target = stock_target(gpu)
    tasks = ms.relax_integration.extract_tasks(mod, target)
    with tempfile.TemporaryDirectory(prefix="stock-metaschedule-") as scratch:
        database = ms.relax_integration.tune_relax(
            mod,
            {},
            target,
            str(folder),
            trials,
            num_trials_per_iter=max(1, min(trials // len(tasks), TRIALS_PER_ROUND)),
            builder=builder or local_builder(gpu.arch, scratch, workers),
            runner=runner,
            space=cuda_space(),
            seed=0,
        )
    good = {r.workload for r in database.get_all_tuning_records() if _ran(r)}
    if not good:
        raise UnsupportedError(f"{model.name}: every candidate failed")
    return folder, len(good), len(tasks)


def _ran(record: Any) -> bool:
    seconds = [float(s) for s in record.run_secs or ()]
    return bool(seconds) and max(seconds) < FAILED
