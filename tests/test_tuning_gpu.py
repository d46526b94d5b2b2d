"""On a GPU: candidates that hang, kill the CUDA context or lie cost themselves only."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from gpu import local_arch

from tvm_winograd import ConvSpec, Epilogue
from tvm_winograd.codegen import build
from tvm_winograd.gpu import Gpu, gpu_for
from tvm_winograd.measure import provenance
from tvm_winograd.schedules.base.kernel import Kernel
from tvm_winograd.schedules.winograd_fused import kernel as winograd_fused
from tvm_winograd.tuning.loop import Session, Settings, Watcher, tune
from tvm_winograd.tuning.runner import Limits, LocalRunner
from tvm_winograd.tuning.spaces import Candidate, space_of
from tvm_winograd.tuning.tasks import Task, shape_tasks

SPEC, EPILOGUE = ConvSpec(1, 16, 14, 14, 64), Epilogue(bias=True, relu=True)
GOOD = winograd_fused.KERNEL
DEVICE_CODE = {
    "hang": "volatile int turn = 1; while (turn) { turn |= 1; } return turn;",
    "trap": 'asm volatile("trap;"); return 0;',
    "bad address": "*(volatile int*)64 = 1; return 0;",
}
EXPECTED = {
    "good before": "ok",
    "trap": "launch error",
    "bad address": "launch error",
    "inexact": "wrong result",
    "hang": "timeout",
    "good after": "ok",
}


@dataclass(frozen=True)
class Fake:
    what: str


def fake_kernel(what: str, gpu: Gpu) -> Kernel:
    good = GOOD.configs(SPEC, gpu)[0]

    def prim_func(spec: ConvSpec, epilogue: Epilogue, config: Any) -> Any:
        func = GOOD.prim_func(spec, epilogue, good)
        return _calling(what, spec, func) if what in DEVICE_CODE else func

    def schedule(sch: Any, config: Any, hardware: Any) -> None:
        if what not in DEVICE_CODE:
            return GOOD.schedule(sch, good, hardware)
        block = sch.get_sblock("out")
        outer, inner = sch.split(sch.fuse(*sch.get_loops(block)), [None, 64])
        sch.bind(outer, "blockIdx.x")
        sch.bind(inner, "threadIdx.x")

    def pack(w: Any, spec: ConvSpec, config: Any) -> Any:
        packed = GOOD.pack_weights(w, spec, good)
        return packed * packed.dtype.type(0.999) if what == "inexact" else packed

    return replace(
        GOOD,
        name=what,
        config=Fake,
        own_illegal=lambda config, spec, hardware: None,
        configs=lambda spec, hardware: [Fake(what)],
        prim_func=prim_func,
        schedule=schedule,
        pack_weights=pack,
        seconds=None,
    )


def _calling(what: str, spec: ConvSpec, func: Any) -> Any:
    """A program of the same arguments whose outputs come from DEVICE_CODE."""
    from tvm import te
    from tvm.backend.cuda.op import cuda_func_call

    name = "fake_" + what.replace(" ", "_")
    source = f"__device__ int {name}(int i) {{ {DEVICE_CODE[what]} }}"
    args = [te.placeholder(p.shape, p.dtype, name=p.name) for p in func.params[:-1]]

    def value(*i: Any) -> Any:
        call = cuda_func_call(name, i[1], source_code=source, return_type="int32")
        return call.astype("float32")

    return te.create_prim_func([*args, te.compute(spec.output_shape, value, name="out")])


def fakes(gpu: Gpu) -> list[Candidate]:
    kernels = [fake_kernel(what, gpu) for what in EXPECTED]
    return space_of(SPEC, EPILOGUE, gpu, kernels).candidates


def test_the_fakes_compile_for_any_gpu():
    gpu = gpu_for("sm_80")
    made = {c.kernel.name: c for c in fakes(gpu)}
    assert list(made) == list(EXPECTED)
    for what in DEVICE_CODE:
        build.build(made[what].schedule.mod, gpu, pipeline="tir")


@pytest.mark.gpu
def test_each_failure_costs_its_candidate_only(tmp_path):
    gpu = gpu_for(local_arch())
    space = replace(space_of(SPEC, EPILOGUE, gpu, []), candidates=fakes(gpu))
    runner = LocalRunner(gpu, Limits(timing=0.05))
    made = provenance.collect(gpu)
    session = Session(Task(SPEC, EPILOGUE, ()), space, gpu, runner, made, tmp_path, Settings())
    try:
        outcome = session.run(Watcher())
    finally:
        runner.close()
    found = {key[2]: trial.status for key, trial in session.known().items()}
    assert found == EXPECTED
    assert outcome.best is not None and outcome.best.kernel.startswith("good")


@pytest.mark.gpu
def test_a_layer_is_tuned(tmp_path):
    gpu = gpu_for(local_arch())
    runner = LocalRunner(gpu, Limits(timing=0.05))
    tasks = shape_tasks([ConvSpec(8, 64, 28, 28, 64).key()])
    try:
        (outcome,) = tune(tasks, gpu, runner, provenance.collect(gpu), tmp_path, Settings(16, 16))
    finally:
        runner.close()
    assert outcome.measured == 16 and outcome.best is not None
    assert outcome.default_us is not None and outcome.best.us <= outcome.default_us
    assert set(outcome.failures) <= {"launch error"}
