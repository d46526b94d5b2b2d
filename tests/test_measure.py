"""The engine's pieces without a GPU: cases, problems, conditions as columns, the CPU's timer."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import pytest

from tvm_winograd.bench.conv.rows import CONVS
from tvm_winograd.bench.network.rows import KERNELS, MODELS
from tvm_winograd.deploy.arguments import numpy_dtype
from tvm_winograd.errors import BuildError, InputError
from tvm_winograd.measure.attempt import Trouble, one_line
from tvm_winograd.measure.builds import Built
from tvm_winograd.measure.conditions import Conditions
from tvm_winograd.measure.cpu_timing import CpuTimer
from tvm_winograd.measure.cuda_timing import Plan
from tvm_winograd.measure.engine import Outcome, Prepared, TimedHow, measure, measure_all
from tvm_winograd.measure.problem import Problem, poison
from tvm_winograd.measure.provenance import Provenance
from tvm_winograd.shapes import ConvSpec, Epilogue
from tvm_winograd.truth import reference

FULL = Epilogue(bias=True, residual=True, relu=True)


class Timer:
    """Notes what happens."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def current(self) -> Any:
        return nullcontext()

    def synchronize(self) -> None:
        self.done.append("wait")


@dataclass
class Case:
    """One whose error is given."""

    timer: Timer
    wrong: float = 0.0
    compiled: Built | None = None
    needed: bool = False
    name: str = "a subject: a provider"
    who: str = "a provider"
    ours: bool = False
    rows: list[Outcome] = field(default_factory=list)

    def built(self) -> Built | None:
        return self.compiled

    def prepare(self, folder: Any) -> Prepared:
        done = self.timer.done

        @contextmanager
        def around() -> Any:
            done.append("enter")
            yield
            done.append("leave")

        return Prepared(lambda: done.append("call"), list, config="c", note="n", around=around)

    def error(self, prepared: Prepared) -> float:
        self.timer.done.append("compare")
        return self.wrong

    def limit(self, prepared: Prepared) -> float:
        return 1e-6

    def timings(self) -> list[TimedHow]:
        def failing(prepared: Prepared) -> dict:
            raise RuntimeError("no graph")

        return [
            TimedHow(lambda prepared: {"us": 2.0}, {"mode": "a"}),
            TimedHow(failing, {"mode": "b"}),
        ]

    def row(self, outcome: Outcome) -> Outcome:
        return outcome

    def line(self, rows: Any) -> str:
        return f"{len(rows)} rows"


def test_a_case_is_checked_then_timed_inside_what_is_around_it():
    case = Case(Timer())
    good, failed = measure(case, case.timer)
    assert (good.status, good.figures, good.note) == ("ok", {"mode": "a", "us": 2.0}, "n")
    assert (failed.status, failed.figures) == ("failed", {"mode": "b"})
    assert failed.note == "RuntimeError: no graph" and failed.prepared is None
    assert case.timer.done[:6] == ["wait", "enter", "call", "wait", "compare", "leave"]
    assert case.timer.done[6:9] == ["enter", "leave", "enter"]


@pytest.mark.parametrize("wrong", [1e-3, float("inf"), float("nan")])
def test_what_is_wrong_is_not_timed(wrong):
    case = Case(Timer(), wrong)
    (row,) = measure(case, case.timer)
    assert row.status == "wrong" and row.note.endswith("limit 1e-06")
    assert row.error == (1e-3 if wrong == 1e-3 else None)


def test_a_build_that_failed(tmp_path):
    broken = Built(tmp_path, 1.0, Trouble("failed", "no"))
    (row,) = measure(Case(Timer(), compiled=broken), Timer())
    assert (row.status, row.note) == ("failed", "no")
    with pytest.raises(BuildError, match="a subject: a provider: no"):
        measure(Case(Timer(), compiled=broken, needed=True, ours=True), Timer())


def test_rows_are_kept_case_by_case():
    kept: list[Any] = []

    class Sink:
        def add(self, rows: Any) -> None:
            kept.append(len(rows))

    said: list[str] = []
    rows = measure_all([Case(Timer()), Case(Timer(), 1.0)], Timer(), Sink(), said.append)
    assert kept == [2, 1] and len(rows) == 3 and said == ["2 rows", "1 rows"]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_problems_of_every_dtype_and_layout(dtype, layout):
    spec = ConvSpec(2, 4, 5, 6, 8, dtype=dtype, layout=layout)
    problem = Problem(spec, FULL, "cpu")
    x, w, bias, residual = (problem.array(name, layout) for name in problem.arrays)
    assert (x.shape, residual.shape) == (spec.input_shape, spec.output_shape)
    assert [a.dtype for a in (x, w, bias, residual)] == [
        numpy_dtype(d) for d in (dtype, dtype, spec.acc, spec.out_dtype)
    ]
    y = reference.conv2d(spec, x, w)
    want = reference.apply_epilogue(spec, FULL, y, bias, residual)
    assert problem.error(want, layout) == 0
    empty = problem.poisoned(layout).numpy()
    assert empty.shape == spec.output_shape and problem.error(empty, layout) > 1


def test_problems_are_the_same_in_every_process():
    spec = ConvSpec(1, 4, 5, 6, 8)
    one, other = (Problem(spec, FULL, "cpu") for _ in range(2))
    assert all(np.array_equal(one.arrays[n], other.arrays[n]) for n in one.arrays)
    assert abs(float(one.arrays["x"].mean())) < 0.3


def test_poison():
    assert np.isnan(poison((2, 3), "float16")).all()
    assert (poison((2, 3), "int32") == -(2**31)).all()


def test_conditions_are_the_last_columns_of_every_row():
    last = [f.name for f in fields(Conditions)]
    for kind in (CONVS, MODELS):
        assert list(kind.columns)[-len(last) :] == last
    shared = [f.name for f in fields(Provenance)]
    assert list(KERNELS.columns)[-len(shared) :] == shared


def test_calls_on_a_cpu():
    calls: list[int] = []
    found = CpuTimer().measure(lambda: calls.append(0), plan=Plan(total_ms=0.0))
    assert found.calls == 1 and found.repeats == len(calls) == 10 and found.us > 0
    with pytest.raises(InputError, match="on a CPU"):
        CpuTimer().measure(print, "graph", "cold")


def test_long_messages_keep_their_ends():
    text = one_line(RuntimeError("begin " + 1000 * "x " + "end"))
    assert text.startswith("RuntimeError: begin") and text.endswith("end") and len(text) < 400
    assert one_line(ValueError("a\nb")) == "ValueError: a b"
