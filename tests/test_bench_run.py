"""The benchmark's loop without a GPU: what becomes of right, wrong and failing providers."""

from __future__ import annotations

import json
from contextlib import nullcontext

import numpy as np
import pytest
from tiny_network import CONDITIONS

from tvm_winograd.bench import providers
from tvm_winograd.bench.conv import session
from tvm_winograd.bench.conv.provider import PEER_LIMIT, Bench, Prepared, Variant
from tvm_winograd.bench.conv.rows import Store, read
from tvm_winograd.bench.conv.run import DEFAULT, PROVIDERS, Settings, measure
from tvm_winograd.cli import main
from tvm_winograd.errors import DeviceError, InputError, UnsupportedError
from tvm_winograd.gpu import gpu_for
from tvm_winograd.measure.attempt import WrongResult
from tvm_winograd.measure.cuda_timing import Timing
from tvm_winograd.measure.problem import Problem
from tvm_winograd.shapes import ConvSpec, Epilogue
from tvm_winograd.truth.reference import from_nchw

SPEC = ConvSpec(n=2, c=4, h=6, w=5, k=3)


class FakeTimer:
    handle = 1

    def __init__(self, refuses: str = "", lost: bool = False) -> None:
        self.refuses, self.lost = refuses, lost

    def current(self):
        return nullcontext()

    def synchronize(self):
        if self.lost:
            raise DeviceError("cudaDeviceSynchronize failed: illegal address (error 700)")

    def measure(self, call, mode, l2, plan):
        if mode == self.refuses:
            raise DeviceError("cudaStreamEndCapture failed")
        call()
        return Timing(10.0 if l2 == "warm" else 12.0, 0.5, plan.calls, plan.repeats)


class Fake:
    """Computes it right, or as its `kind` says."""

    def __init__(self, kind: str = "right", name: str = "peer", ours: bool = False) -> None:
        self.kind, self.name, self.ours = kind, name, ours

    def available(self):
        return None

    def variants(self, spec, epilogue):
        yield Variant("one", self._prepare)
        yield Variant("two", self._prepare)

    def _prepare(self, problem: Problem, folder) -> Prepared:
        if self.kind == "refuses":
            raise UnsupportedError("no such algorithm")
        if self.kind == "breaks":
            raise RuntimeError("a\nkernel")
        out = np.full(problem.want.shape, np.nan)

        def call():
            if self.kind != "lazy":
                out[:] = problem.want * (1.001 if self.kind == "rough" else 1.0)

        output = lambda: from_nchw(out, "CHWN")  # noqa: E731
        return Prepared(call, output, PEER_LIMIT, layout="CHWN", config="c", workspace_bytes=5)


def measured(provider, timer=None, store=None, settings=None):
    bench = Bench(timer or FakeTimer(), gpu_for("sm_90"), "NVIDIA H200")
    store = store or Store()
    return measure([SPEC], Epilogue(), [provider], bench, CONDITIONS, store, settings)


def test_a_right_result_is_timed_in_every_mode(tmp_path):
    store = Store([tmp_path / "rows.json"])
    rows = measured(Fake(), store=store)
    assert [(r.variant, r.l2, r.mode) for r in rows[:4]] == [
        ("one", "warm", "back_to_back"), ("one", "warm", "graph"),
        ("one", "cold", "back_to_back"), ("one", "cold", "graph"),
    ]  # fmt: skip
    row = rows[0]
    assert (row.us, row.spread_us, row.error) == (10.0, 0.5, 0.0)
    assert row.tflops == pytest.approx(SPEC.flops / 10.0 / 1e6)
    assert (row.layout, row.workspace_bytes, row.gpu, row.commit) == (
        "CHWN", 5, "NVIDIA H200", "abc",
    )  # fmt: skip
    assert read(tmp_path / "rows.json") == rows


def test_only_what_is_asked_for():
    rows = measured(Fake(), settings=Settings(modes=["graph"], l2=["cold"]))
    assert [(r.mode, r.l2, r.us) for r in rows] == [("graph", "cold", 12.0)] * 2


@pytest.mark.parametrize(
    ("kind", "status", "note"),
    [
        ("refuses", "refused", "no such algorithm"),
        ("breaks", "failed", "RuntimeError: a kernel"),
        ("rough", "wrong", "relative error 1.00e-03, limit 5e-06"),
        ("lazy", "wrong", "NaN or infinity"),
    ],
)
def test_a_peer_that_cannot_is_a_row_without_a_time(kind, status, note):
    rows = measured(Fake(kind))
    assert [(r.variant, r.status, r.us) for r in rows] == [
        ("one", status, None), ("two", status, None),
    ]  # fmt: skip
    assert note in rows[0].note


def test_a_mode_that_fails_costs_that_mode():
    rows = measured(Fake(), FakeTimer(refuses="graph"), settings=Settings(l2=["warm"]))
    assert [(r.mode, r.status) for r in rows[:2]] == [("back_to_back", "ok"), ("graph", "failed")]


def test_a_wrong_result_of_ours_ends_it():
    with pytest.raises(WrongResult, match=r"n2c4.* ours one \(c\) is wrong: relative error"):
        measured(Fake("rough", "ours", ours=True))
    with pytest.raises(RuntimeError, match="kernel"):
        measured(Fake("breaks", "ours", ours=True))


def test_a_lost_context_ends_it():
    with pytest.raises(DeviceError, match=r"peer one broke the GPU's context.*a kernel"):
        measured(Fake("breaks"), FakeTimer(lost=True))


@pytest.mark.parametrize("epilogue", ["none", "bias+residual+relu"])
def test_problem(epilogue):
    problem = Problem(SPEC, Epilogue.from_key(epilogue))
    assert problem.want.shape == (2, 3, 6, 5) and problem.want.dtype == np.float64
    assert 0.3 < problem.want.std() < 3
    assert problem.error(from_nchw(problem.want, "NHWC"), "NHWC") == 0
    assert problem.error(np.full((2, 3, 6, 5), np.nan)) == float("inf")


def test_float32_alone():
    with pytest.raises(UnsupportedError, match="float32"):
        session.bench_convs([ConvSpec(1, 4, 4, 4, 4, dtype="float16")], Epilogue())


def test_what_is_measured_without_being_asked():
    assert DEFAULT == ("ours", "cudnn", "torch", "tvm-dlight", "tvm-metaschedule")
    assert set(PROVIDERS) - set(DEFAULT) == {"torch-compile"}


def test_missing_providers():
    class Absent(Fake):
        def available(self):
            return "not installed"

    makers = {"ours": lambda bench: Fake(), "torch": lambda bench: Absent()}
    bench, said = Bench(FakeTimer(), gpu_for("sm_90"), "NVIDIA H200"), []

    def pick(*names: str):
        return providers.pick(makers, tuple(makers), names, bench, said.append)

    assert len(pick()) == 1
    (picked,) = pick("ours:one", "ours:two")
    assert isinstance(picked, providers.Picked)
    assert said == ["without torch: not installed"]
    with pytest.raises(UnsupportedError, match="provider torch: not installed"):
        pick("torch")


def test_some_variants_of_a_provider():
    rows = measured(providers.Picked(Fake(), ["two"]), settings=Settings(["graph"], ["warm"]))
    assert [row.variant for row in rows] == ["two"]
    with pytest.raises(InputError, match="peer has no variant 'three': there are one, two"):
        measured(providers.Picked(Fake(), ["three"]))


def test_a_session(monkeypatch, tmp_path, capsys):
    """The command from arguments to files, with a fake GPU."""
    gpu = gpu_for("sm_90")
    monkeypatch.setattr(session.conditions, "find_gpu", lambda arch: (gpu, "NVIDIA H200"))
    monkeypatch.setattr(session.conditions, "collect", lambda gpu: CONDITIONS)
    monkeypatch.setattr(session, "CudaTimer", lambda: nullcontext(FakeTimer()))
    monkeypatch.setattr(session, "PROVIDERS", {"fake": lambda bench: Fake(name="ours")})
    command = ["bench", "conv", SPEC.key(), "--batch", "1,2", "--providers", "fake"]
    command += ["--modes", "graph", "--l2", "warm", "--out", str(tmp_path)]
    assert main([*command, "--csv", str(tmp_path / "more.csv")]) == 0
    rows = read(tmp_path / "conv.json")
    assert len(rows) == 4 and read(tmp_path / "more.csv") == read(tmp_path / "conv.csv") == rows
    assert "N2 C4 K3 6x5" in capsys.readouterr().out
    assert main([*command, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["rows"]) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--modes", "fast"], "--modes fast: there are back_to_back, graph"),
        (["--l2", "hot"], "--l2 hot"),
        (["--providers", "cublas:best"], "provider 'cublas:best': there are ours, cudnn"),
        (["--layers", "alexnet"], "alexnet"),
        (["--epilogue", "mystery"], "epilogue 'mystery'"),
        (["n1c2"], "spec key"),
        (["--jobs", "0"], "--jobs 0: at least one"),
        (["--json", "rows.txt"], ".json or .csv"),
    ],
)
def test_bad_arguments(arguments, message, capsys):
    assert main(["bench", "conv", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_without_a_gpu(monkeypatch, capsys):
    monkeypatch.setattr(session.conditions.env, "collect", lambda: {"gpus": []})
    assert main(["bench", "conv", "--batch", "1"]) == 2
    assert "there is no NVIDIA GPU here" in capsys.readouterr().err
    gpus = [{"arch": "sm_86", "name": "RTX 3090"}]
    monkeypatch.setattr(session.conditions.env, "collect", lambda: {"gpus": gpus})
    assert main(["bench", "conv", "--arch", "sm_90"]) == 2
    assert "RTX 3090, is sm_86" in capsys.readouterr().err


def test_logs_folder_must_exist(tmp_path):
    with pytest.raises(InputError, match="is no folder"):
        session._log_rows(tmp_path / "no", gpu_for("sm_90"), print)
