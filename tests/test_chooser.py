"""What a user asks of the kernels of a network: options, limits, layers by name."""

import json
from dataclasses import replace

import pytest

import tvm_winograd
from tvm_winograd import TvmWinogradError, cli, compiler
from tvm_winograd.check.inspect import layers_of
from tvm_winograd.choose.chooser import make_chooser
from tvm_winograd.choose.options import Limits, Wishes
from tvm_winograd.cli.options import parse_bytes
from tvm_winograd.errors import InputError, UnsupportedError
from tvm_winograd.frontend.builtin import builtin_model
from tvm_winograd.frontend.resnet import ResNetConfig
from tvm_winograd.gpu import gpu_for
from tvm_winograd.tables import lookup as logs
from tvm_winograd.tables import store as log_store

H200 = gpu_for("sm_90")
SMALL = ResNetConfig("basic", (1, 1), 10, 3, 33, (16, 24))


@pytest.fixture(scope="module")
def model():
    return builtin_model(SMALL, "small", batch=2)


def chosen(model, **wishes):
    return {layer.name: layer.choice for layer in layers_of(model, H200, Wishes(**wishes))}


def test_an_algorithm_where_it_applies(model):
    choices = chosen(model, algorithm="winograd-f4")
    assert {c.algorithm for c in choices.values()} == {"winograd-f4", "gemm"}


def test_a_layer_by_name(model):
    name = next(n for n, c in chosen(model, algorithm="winograd").items() if "w" in c.algorithm)
    choices = chosen(model, algorithm="winograd", layers={name: "gemm"})
    assert choices[name].algorithm == "gemm"
    strided = next(n for n, c in choices.items() if "stride 1, got 2" in c.reason)
    with pytest.raises(TvmWinogradError, match=rf"{strided}.*stride 1, got 2"):
        chosen(model, layers={strided: "winograd"})


def test_limits_are_never_passed_over(model):
    limits = Limits(("winograd",))
    with pytest.raises(TvmWinogradError, match="none of the allowed winograd"):
        chosen(model, limits=limits)
    with pytest.raises(TvmWinogradError, match="none of the allowed winograd"):
        chosen(model, algorithm="gemm", limits=limits)


def test_an_algorithm_that_does_not_exist_there():
    with pytest.raises(TvmWinogradError, match="there are auto"):
        make_chooser(H200, Wishes(layers={"conv1": "fft"}))


def test_names_that_are_no_layer(model):
    with pytest.raises(TvmWinogradError, match="convolutions are"):
        tvm_winograd.compile(model, layers={"conv99": "direct"})


def test_the_command_line(capsys):
    command = ["show", "resnet18", "--target", "cuda", "--batch", "32", "--json"]
    assert cli.main([*command, "--max-error", "1e-6", "--workspace-limit", "0"]) == 0
    entries = json.loads(capsys.readouterr().out)
    choices = [entry["choice"] for entry in entries]
    assert {c["algorithm"] for c in choices} == {"winograd-f2", "gemm"}
    name = choices[-1]["name"]
    assert cli.main([*command, "--use", f"{name}=im2col", "--deterministic"]) == 0
    entries = json.loads(capsys.readouterr().out)
    assert [e["choice"]["algorithm"] for e in entries if e["layer"] == name] == ["im2col"]


@pytest.mark.parametrize(
    "option",
    [
        ["--use", "conv1"],
        ["--use", "=gemm"],
        ["--algorithms", "fft"],
        ["--workspace-limit", "many"],
        ["--max-error", "-1"],
    ],
    ids=" ".join,
)
def test_options_of_another_form(option, capsys):
    try:
        assert cli.main(["show", "resnet18", *option]) == 2
    except SystemExit as error:
        assert error.code == 2
    assert capsys.readouterr().err


def test_bytes():
    texts = {"0": 0, "12": 12, "3K": 3072, "64M": 2**26, "1GiB": 2**30, "2 mb": 2**21}
    assert {text: parse_bytes(text) for text in texts} == texts


def test_what_kernels_occupy_is_a_table(capsys) -> None:
    command = ["show", "resnet18", "--target", "cuda", "--layer", "conv1", "--what", "resources"]
    assert cli.main(command) == 0
    printed = capsys.readouterr().out
    assert "static shared bytes" in printed and "conv_kernel" in printed and "{" not in printed


def test_made_up_times_are_pointed_out(tmp_path):
    (row, *_), _ = logs.read_folder(logs.shipped_folder(), "sm_90")
    said = []
    make_chooser(H200, Wishes(logs=logs.shipped_folder()), said.append)
    assert not said
    log_store.merge(tmp_path, [replace(row, gpu=logs.MOCK)])
    make_chooser(H200, Wishes(logs=tmp_path), said.append)
    assert len(said) == 1 and said[0].startswith("1 rows of") and "made-up" in said[0]


def test_wrong_names_are_refused_before_a_model_is_loaded(monkeypatch, tmp_path):
    monkeypatch.delattr(compiler, "load_model")
    with pytest.raises(InputError, match="nowhere is no folder; give a folder of tables"):
        tvm_winograd.compile("resnet18", logs=tmp_path / "nowhere")
    with pytest.raises(UnsupportedError, match="winograd-f4-fused"):
        tvm_winograd.compile("resnet18", algorithm="winograd-f4-fused")  # none for CPUs
