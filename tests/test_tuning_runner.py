"""Candidates that do not compile, crash, hang or lie, on llvm: each costs itself only."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from tvm_winograd import ConvSpec, Epilogue, cli
from tvm_winograd.gpu import host_cpu
from tvm_winograd.measure import provenance
from tvm_winograd.schedules.base.kernel import Kernel
from tvm_winograd.schedules.on_cpu import direct as direct_cpu
from tvm_winograd.tables import lookup as logs
from tvm_winograd.truth import reference
from tvm_winograd.tuning import journal
from tvm_winograd.tuning.loop import Session, Settings, Watcher
from tvm_winograd.tuning.problem import load, write_problem
from tvm_winograd.tuning.runner import Limits, LocalRunner
from tvm_winograd.tuning.spaces import space_of
from tvm_winograd.tuning.tasks import Task

SPEC, EPILOGUE = ConvSpec(1, 8, 6, 6, 16), Epilogue(bias=True, relu=True)
CPU = host_cpu()


@dataclass(frozen=True)
class Fake:
    """How a candidate misbehaves, or the C function it calls for each output."""

    what: str


def fake_kernel(what: str, **changes) -> Kernel:
    """The direct kernel, spoilt."""
    good = direct_cpu.KERNEL.configs(SPEC, CPU)[0]

    def prim_func(spec, epilogue, config):
        from tvm import te, tirx

        spec = replace(spec, n=2) if what == "misshapen" else spec
        func = direct_cpu.KERNEL.prim_func(spec, epilogue, good)
        if "()" not in what:
            return func
        args = [te.placeholder(p.shape, p.dtype, name=p.name) for p in func.params[:-1]]
        call = tirx.call_extern("int32", what.removesuffix("()"))
        out = te.compute(spec.output_shape, lambda *i: call.astype("float32"), name="out")
        return te.create_prim_func([*args, out])

    def schedule(sch, config, hardware):
        if "()" not in what:
            direct_cpu.KERNEL.schedule(sch, good, hardware)

    def pack(w, spec, config):
        packed = direct_cpu.KERNEL.pack_weights(w, spec, good)
        return packed * 0.999 if what == "inexact" else packed

    return replace(
        direct_cpu.KERNEL,
        name=what,
        config=Fake,
        own_illegal=lambda config, spec, hardware: None,
        configs=lambda spec, hardware: [Fake(what)],
        prim_func=prim_func,
        schedule=schedule,
        pack_weights=pack,
        **changes,
    )


# abort and pause are C's: the process dies, or waits for ever.
EXPECTED = {
    "broken": "compile error",
    "misshapen": "launch error",  # TVM refuses its arguments
    "inexact": "wrong result",
    "abort()": "crash",
    "good": "ok",
    "pause()": "timeout",
}


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """(outcome, trials by kernel, folder) of a session over all the fakes."""
    out = tmp_path_factory.mktemp("tuned")
    kernels = [fake_kernel(what) for what in EXPECTED]
    kernels[0] = replace(kernels[0], pass_config={"no.such.option": 1})
    space = space_of(SPEC, EPILOGUE, CPU, kernels)
    made = provenance.collect(CPU)
    runner = LocalRunner(CPU, Limits(build=60, run=4, timing=0.02), builders=1)
    task = Task(SPEC, EPILOGUE, (Epilogue(),))
    try:
        outcome = Session(task, space, CPU, runner, made, out, Settings()).run(Watcher())
    finally:
        runner.close()
    trials = journal.read(journal.journal_path(out, "cpu", CPU.cpu))[0]
    return outcome, {t.kernel: t for t in trials.values()}, out


def test_each_failure_is_told_apart(tuned):
    _, trials, _ = tuned
    assert {name: t.status for name, t in trials.items()} == EXPECTED


def test_failures_say_what_happened(tuned):
    _, trials, _ = tuned
    assert "no.such.option" in trials["broken"].message
    assert trials["misshapen"].message
    assert "ended with -6" in trials["abort()"].message
    assert "limit 1e-06" in trials["inexact"].message
    assert trials["inexact"].error > 1e-4 and trials["inexact"].us is None
    assert "4 s" in trials["pause()"].message


def test_only_the_right_one_wins(tuned):
    outcome, _, out = tuned
    assert outcome.best.kernel == "good" and outcome.best.error < 1e-6
    assert outcome.failures == {s: 1 for s in EXPECTED.values() if s != "ok"}
    assert outcome.default_us is None  # the compiler's is not among the fakes
    rows, complaints = logs.read_folder(out, "cpu")
    assert not complaints
    found = {(r.kernel, r.epilogue, r.origin, r.gpu) for r in rows}
    assert found == {
        ("good", "bias+relu", "measured", CPU.cpu),
        ("good", "none", "transferred", CPU.cpu),
    }


def test_a_small_layer_end_to_end(tmp_path, capsys):
    out = str(tmp_path)
    spec = ConvSpec(1, 8, 6, 6, 16)
    assert cli.main(["tune", spec.key(), "--trials", "3", "--out", out]) == 0
    assert "3 measured" in capsys.readouterr().err
    assert cli.main(["logs", "check", out, "--build"]) == 0
    rows, _ = logs.read_folder(tmp_path, "cpu")
    assert all(r.error is not None and r.error < 1e-6 and r.us < 1e4 for r in rows)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8"])
def test_problems_survive_the_files(tmp_path, dtype):
    spec = ConvSpec(1, 4, 5, 5, 3, dtype=dtype)
    full = Epilogue(True, True, True)
    problem = write_problem(tmp_path / "p", spec, full, "cpu")
    x, bias, residual = (
        load(tmp_path / "p" / f"{name}.npy", kind)
        for name, kind in (("x", dtype), ("bias", spec.acc), ("residual", spec.out_dtype))
    )
    y = reference.conv2d(spec, x, problem.weights)
    want = reference.apply_epilogue(spec, full, y, bias, residual)
    assert np.array_equal(np.load(tmp_path / "p" / "want.npy"), want)
