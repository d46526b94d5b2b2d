"""The command `bench model` from arguments to files, with a fake GPU."""

from __future__ import annotations

import json
from contextlib import nullcontext

import pytest
from tiny_network import CONDITIONS, Fake, FakeTimer, bench, tiny

from tvm_winograd.bench import providers
from tvm_winograd.bench.network import network, session
from tvm_winograd.bench.network.rows import MODELS
from tvm_winograd.choose.options import Limits, Wishes
from tvm_winograd.cli import main
from tvm_winograd.errors import UnsupportedError
from tvm_winograd.gpu import host_cpu


@pytest.fixture(autouse=True)
def loaded(monkeypatch):
    """Every subject is the small network."""
    monkeypatch.setattr(network.Subject, "load", lambda self: tiny())


def test_wishes_as_text():
    assert Wishes().asked() == {}
    limits = Limits(algorithms=("gemm", "direct"), max_error=1e-6, workspace=0, deterministic=True)
    wishes = Wishes("winograd-f2", limits, "NHWC", {"conv1": "gemm"}, "some/logs")
    text = " ".join(f"{name}={value}" for name, value in wishes.asked().items())
    assert text == (
        "algorithm=winograd-f2 algorithms=gemm,direct max-error=1e-06 workspace-limit=0 "
        "deterministic=yes layout=NHWC use=conv1=gemm logs=logs"
    )


@pytest.fixture
def fake_gpu(monkeypatch):
    cpu = host_cpu()
    monkeypatch.setattr(session.conditions, "find_gpu", lambda arch: (cpu, "NVIDIA H200"))
    monkeypatch.setattr(session.conditions, "collect", lambda gpu: CONDITIONS)
    monkeypatch.setattr(session, "CudaTimer", lambda: nullcontext(FakeTimer()))


def test_the_command(fake_gpu, monkeypatch, tmp_path, capsys):
    makers = {"ours": lambda bench: Fake(name="ours", ours=True), "peer": lambda bench: Fake()}
    monkeypatch.setattr(session, "PROVIDERS", makers)
    command = ["bench", "model", "tiny", "--batch", "2", "--out", str(tmp_path)]
    command += ["--providers", "ours,peer", "--max-error", "1e-6"]
    assert main([*command, "--csv", str(tmp_path / "more.csv")]) == 0
    rows = MODELS.read(tmp_path / "model.json")
    assert [(r.provider, r.options) for r in rows] == [("ours", "max-error=1e-06"), ("peer", "")]
    assert "latency" in rows[0].method
    assert MODELS.read(tmp_path / "more.csv") == MODELS.read(tmp_path / "model.csv") == rows
    assert not (tmp_path / "model-kernels.json").exists()
    assert "## NVIDIA H200, tiny, batch 2" in capsys.readouterr().out
    assert main([*command, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert len(document["rows"]) == 2 and document["kernels"] == []


def test_missing_providers():
    class Absent(Fake):
        def available(self):
            return "not installed"

    makers = {"ours": lambda bench: Fake(), "torch": lambda bench: Absent()}
    said: list[str] = []
    assert len(providers.pick(makers, tuple(makers), [], bench(), said.append)) == 1
    assert said == ["without torch: not installed"]
    with pytest.raises(UnsupportedError, match="provider torch: not installed"):
        providers.pick(makers, tuple(makers), ["torch"], bench(), said.append)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--providers", "cublas"], "provider 'cublas': there are ours, ours-kernels, torch"),
        (["--batch", "0"], "batch 0"),
        (["--jobs", "0"], "--jobs 0: at least one"),
        (["--json", "rows.txt"], ".json or .csv"),
        (["--workspace-limit", "much"], "a number of bytes is needed"),
        (["--use", "conv1"], "LAYER=ALGORITHM"),
    ],
)
def test_bad_arguments(arguments, message, capsys):
    assert main(["bench", "model", "resnet18", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_without_a_gpu_or_torch(fake_gpu, monkeypatch, capsys):
    monkeypatch.setattr(session.peers, "has_torch_cuda", lambda: False)
    assert main(["bench", "model", "resnet18", "--profile"]) == 2
    assert "--profile needs torch" in capsys.readouterr().err
    assert main(["bench", "model", "resnet18", "--profile", "--providers", "torch"]) == 2
    assert "add ours to the providers" in capsys.readouterr().err
    monkeypatch.undo()
    monkeypatch.setattr(session.conditions.env, "collect", lambda: {"gpus": []})
    assert main(["bench", "model", "resnet18"]) == 2
    assert "there is no NVIDIA GPU here" in capsys.readouterr().err
