"""`run`, `kernels`, `--version` and what `compile` prints."""

from __future__ import annotations

import json

import numpy as np
import pytest

import tvm_winograd
from tvm_winograd.check import support
from tvm_winograd.cli import main
from tvm_winograd.cli.preprocess import read_input
from tvm_winograd.errors import InputError
from tvm_winograd.gpu import gpu_for, host_cpu
from tvm_winograd.shapes import ConvSpec, Epilogue

KEY = ConvSpec(n=1, c=64, h=9, w=9, k=64, stride=2).key()


@pytest.fixture(scope="module")
def artifact(tmp_path_factory):
    import torch

    class Both(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = torch.nn.Conv2d(3, 4, 3)

        def forward(self, x, y):
            return self.conv(x), y + 1

    torch.manual_seed(0)
    example = (torch.zeros(2, 3, 6, 6), torch.zeros(2, 5))
    program = torch.export.export(Both().eval(), example)
    path = tmp_path_factory.mktemp("run") / "a"
    return tvm_winograd.compile(program, output=path).path


def ran(capsys, *args):
    capsys.readouterr()
    code = main(["run", *map(str, args)])
    out, err = capsys.readouterr()
    return code, out, err


def test_random_inputs_and_saved_outputs(artifact, tmp_path, capsys):
    code, out, err = ran(capsys, artifact, "--json", "--repeats", 20, "--save", tmp_path / "o.npz")
    assert code == 0 and "random values" in err
    report = json.loads(out)
    assert report["min_ms"] <= report["median_ms"] <= report["p90_ms"] <= report["max_ms"]
    assert report["images_per_s"] > 0 and (report["batch"], report["repeats"]) == (2, 20)
    assert [o["shape"] for o in report["outputs"]] == [[2, 4, 4, 4], [2, 5]]
    with np.load(tmp_path / "o.npz") as saved:
        names = [o["name"] for o in report["outputs"]]
        assert saved[names[0]].shape == (2, 4, 4, 4)
        assert np.isfinite(saved[names[1]]).all()
    code, out, _ = ran(capsys, artifact)
    assert code == 0 and "images/s" in out and "outputs" in out


def test_given_inputs_are_converted_and_said(artifact, tmp_path, capsys):
    np.save(tmp_path / "x.npy", np.ones((2, 3, 6, 6)))
    np.save(tmp_path / "y.npy", np.arange(10).reshape(2, 5))
    files = [tmp_path / "x.npy", tmp_path / "y.npy"]
    code, _, err = ran(capsys, artifact, *files, "--save", tmp_path / "o.npz")
    assert code == 0
    assert "x.npy: float64 converted to float32" in err and "y.npy: int64 converted" in err
    with np.load(tmp_path / "o.npz") as saved:
        assert np.array_equal(saved[saved.files[1]], 1 + np.arange(10.0).reshape(2, 5))


def test_integers_are_not_rounded(tmp_path):
    said = []
    np.save(tmp_path / "x.npy", np.array([[1.0, 2.0]]))
    got = read_input(tmp_path / "x.npy", (1, 2), None, dtype="int64", say=said.append)
    assert got.dtype == np.int64 and len(said) == 1
    np.save(tmp_path / "x.npy", np.array([[1.0, 2.5]]))
    with pytest.raises(InputError, match="cannot hold"):
        read_input(tmp_path / "x.npy", (1, 2), None, dtype="int64")
    np.save(tmp_path / "x.npy", np.array([["a", "b"]]))
    with pytest.raises(InputError, match="is needed"):
        read_input(tmp_path / "x.npy", (1, 2), None)


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (["x.npy"], "1 files given, the model takes 2"),
        (["--save", "o.txt"], "ends in .npy or .npz"),
        (["--save", "absent/o.npy"], "does not exist"),
        (["--batch", "3"], "compiled for a batch of 2"),
        (["--repeats", "0"], "at least 1"),
    ],
)
def test_what_run_refuses(artifact, capsys, args, why):
    code, out, err = ran(capsys, artifact, *args)
    assert (code, out) == (2, "") and why in err


def test_kernels_and_what_they_take(capsys):
    assert main(["kernels", "--target", "cuda", "--arch", "sm_80", "--json"]) == 0
    listed = {k["name"]: k["takes"] for k in json.loads(capsys.readouterr().out)["kernels"]}
    assert listed["implicit-gemm"]["stride 2"] and not listed["winograd-f2-fused"]["stride 2"]
    assert not any(listed["gemm-wgmma"].values())  # sm_90's alone
    assert main(["kernels", KEY, "--target", "cuda", "--arch", "sm_90", "--json"]) == 0
    found = {k["kernel"]: k for k in json.loads(capsys.readouterr().out)["kernels"]}
    assert "stride 1" in found["winograd-f2-fused"]["refused"]
    assert found["implicit-gemm"]["estimated_us"] > 0
    assert main(["kernels", "n1"]) == 2


@pytest.mark.parametrize("hardware", [gpu_for("sm_90"), host_cpu()], ids=lambda h: h.arch)
def test_kernels_say_what_the_selector_asks(hardware):
    for one in support.of_convolution(support.PROPERTIES["stride 2"], Epilogue(), hardware):
        asked = one.kernel.supports(support.PROPERTIES["stride 2"], Epilogue(), hardware)
        assert (one.refused is None) == (asked is None)


def test_version_and_a_summary(capsys, tmp_path):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == f"tvm-winograd {tvm_winograd.__version__}"


def test_the_architecture_of_the_gpu_here(monkeypatch):
    from tvm_winograd import conv

    for gpus, arch, why in (
        ([], "sm_90", "no GPU is here"),
        ([{"name": "T4", "arch": "sm_75"}], "sm_75", "of the T4 that is here"),
        ([{"name": "V100", "arch": "sm_70"}], "sm_90", "sm_70, which is not supported"),
    ):
        monkeypatch.setattr(conv.devices, "gpus", lambda found=gpus: found)
        assert conv.arch_here()[0] == arch and why in conv.arch_here()[1]
        assert conv.hardware_for("cuda", None).arch == arch
