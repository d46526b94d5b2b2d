"""Stock TVM as a provider: the same relax model through TVM's own pipeline for the target.

Its passes are those of `relax.pipeline.static_shape_tuning_pipeline` (DecomposeOpsForInference,
then legalise and fuse), its schedules MetaSchedule's where a database was given, else dlight's
defaults, its memory plan and CUDA graph those of `relax.get_default_pipeline`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tvm_winograd.codegen import build
from tvm_winograd.codegen.plan import planned_bytes
from tvm_winograd.errors import UnsupportedError, as_build_error
from tvm_winograd.frontend import Model
from tvm_winograd.gpu import Gpu, Hardware, make_target
from tvm_winograd.measure.builds import Build

from .network import Network, Subject, arrays, on_device
from .provider import Bench, Prepared

_LIBRARY, _NOTES = "network.so", "stock.json"
_WORKLOADS, _RECORDS = "database_workload.json", "database_tuning_record.json"


class Dlight:
    """dlight's default schedules for every function."""

    name, ours = "tvm-dlight", False

    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    def available(self) -> str | None:
        return None

    def build(self, subject: Subject) -> Build | None:
        return partial(compile_into, subject, self._bench.hardware, None)

    def prepare(self, network: Network, folder: Path | None) -> Prepared:
        import tvm
        from tvm import relax

        assert folder is not None
        notes = json.loads((folder / _NOTES).read_text(encoding="utf-8"))
        device = self._bench.device
        module = tvm.runtime.load_module(str(folder / _LIBRARY))
        machine = relax.VirtualMachine(module, tvm.device(device, 0))
        main, inputs, result = machine["main"], network.tensors(), [None]
        weights = [on_device(a, device) for a in kept_arguments(network.model.params).values()]
        bundle = tvm.runtime.convert(weights)

        def run() -> None:
            result[0] = main(*inputs, bundle)

        return Prepared(
            call=run,
            output=lambda: arrays(result[0]),
            memory_bytes=notes["planned_bytes"],
            config=notes["schedules"],
        )


class MetaSchedule(Dlight):
    """The best schedules that MetaSchedule's own search found; dlight's where it has none."""

    name = "tvm-metaschedule"

    def available(self) -> str | None:
        folder = self._bench.stock
        if folder is None:
            return "no folder of MetaSchedule's databases was given (--stock DIR)"
        return None if folder.is_dir() else f"{folder}: no such folder"

    def build(self, subject: Subject) -> Build | None:
        assert self._bench.stock is not None
        return partial(compile_into, subject, self._bench.hardware, self._bench.stock)


def compile_into(subject: Subject, hardware: Hardware, stock: Path | None, folder: Path) -> None:
    """TVM's own compilation of a subject, into files in `folder`.

    Args:
        stock: MetaSchedule's databases; none if dlight is to schedule everything.
    Raises:
        UnsupportedError: no database for this model, batch and architecture.
        BuildError: TVM cannot compile it.
    """
    model = subject.load()
    database = None if stock is None else open_database(stock, model, hardware.arch)
    with as_build_error(f"stock TVM could not compile {subject}"):
        executable, planned, schedules = compiled(model, hardware, database)
    build.export(executable, folder / _LIBRARY)
    notes = {"planned_bytes": planned, "schedules": schedules}
    (folder / _NOTES).write_text(json.dumps(notes), encoding="utf-8")


def compiled(model: Model, hardware: Hardware, database: Any = None) -> tuple[Any, int, str]:
    """Compiles: (executable of main(inputs..., weights), planned bytes, how it is scheduled)."""
    import tvm
    from tvm import relax

    mod, tuned = legalized(model, hardware), 0
    target, on_gpu = make_target(hardware), isinstance(hardware, Gpu)
    if database is not None:
        mod, tuned = with_database(mod, target, database)
    functions, memory = len(_prim_funcs(mod)), _memory_watch()
    config = {"relax.backend.use_cuda_graph": on_gpu}
    with target, tvm.transform.PassContext(opt_level=3, config=config, instruments=[memory]):
        lowered = relax.get_default_pipeline(target)(mod)
    executable = build.build(build.Plan(lowered, memory.bytes), hardware)
    rest = "dlight" if on_gpu else "TVM's default"
    tunings = f"{tuned} functions by MetaSchedule, {functions - tuned} by {rest}"
    return executable, memory.bytes, rest if database is None else tunings


def with_database(mod: Any, target: Any, database: Any) -> tuple[Any, int]:
    """Applies the schedules of a meta_schedule Database, and counts them."""
    import tvm
    from tvm import relax

    with target, database, tvm.transform.PassContext(opt_level=3):
        mod = relax.transform.MetaScheduleApplyDatabase()(mod)
    return mod, sum(map(_is_scheduled, _prim_funcs(mod)))


def legalized(model: Model, hardware: Hardware) -> Any:
    """Lowers the model to PrimFuncs, fused and unscheduled: MetaSchedule takes its tasks from them.

    Vectors (biases, batch norms) are bound as constants, so that TVM can fold what they become;
    the other parameters are one tuple behind the inputs.
    """
    import tvm
    from tvm import relax

    vectors = {n: a for n, a in model.params.items() if n not in kept_arguments(model.params)}
    variables = list(model.mod["main"].params)[len(model.inputs) :]
    names = {n: v.name for n, v in zip(model.params, variables, strict=True)}
    bound = {names[n]: tvm.runtime.tensor(a) for n, a in vectors.items()}
    passes = [
        relax.transform.BindParams("main", bound),
        relax.transform.DecomposeOpsForInference(),
        relax.transform.CanonicalizeBindings(),
        relax.transform.BundleModelParams(),
        relax.get_pipeline("zero"),
    ]
    with make_target(hardware), tvm.transform.PassContext(opt_level=3):
        return tvm.transform.Sequential(passes)(model.mod)


def kept_arguments(params: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Picks the parameters that are arguments of the compiled network, in their order."""
    return {name: array for name, array in params.items() if array.ndim > 1}


def database_folder(stock: Path, model: Model, arch: str) -> Path:
    """Names the folder of MetaSchedule's database of a model with a batch."""
    return stock / f"{model.name}-b{model.batch}-{arch}"


def open_database(stock: Path, model: Model, arch: str) -> Any:
    """Raises:
    UnsupportedError: there is none.
    """
    from tvm.s_tir import meta_schedule as ms

    folder = database_folder(stock, model, arch)
    files = [folder / _WORKLOADS, folder / _RECORDS]
    if not all(path.is_file() for path in files):
        raise UnsupportedError(  # a row's note: without the folder of this machine
            f"no database {folder.name} there: python benchmarks/stock_metaschedule_model.py "
            f"--out DIR {model.name} --batch {model.batch}"
        )
    return ms.database.JSONDatabase(*map(str, files), allow_missing=False)


def _prim_funcs(mod: Any) -> list[Any]:
    import tvm

    return [func for _, func in mod.functions_items() if isinstance(func, tvm.tirx.PrimFunc)]


def _is_scheduled(func: Any) -> bool:
    return bool(func.attrs and func.attrs.get("tirx.is_scheduled", False))


def _memory_watch() -> Any:
    """Makes an instrument that notes how much memory TVM's pass planned, as `bytes`."""
    import tvm

    @tvm.instrument.pass_instrument
    class Watch:
        bytes = 0

        def run_after_pass(self, mod: Any, info: Any) -> None:
            if info.name == "StaticPlanBlockMemory":
                self.bytes = planned_bytes(mod)

    return Watch()
