"""The whole path on llvm: three ways in, one result; what the manifest says; what is refused."""

from __future__ import annotations

import re
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest

import tvm_winograd
from tvm_winograd import ConvSpec, TvmWinogradError, compiler
from tvm_winograd.check.verify import verify
from tvm_winograd.codegen import library
from tvm_winograd.errors import BuildError
from tvm_winograd.frontend import load_model
from tvm_winograd.frontend.builtin import builtin_model
from tvm_winograd.frontend.resnet import ResNetConfig
from tvm_winograd.schedules.base.kernel import config_dict
from tvm_winograd.schedules.on_cpu import direct as direct_cpu
from tvm_winograd.schedules.winograd_fused import kernel as winograd_fused
from tvm_winograd.truth import reference
from tvm_winograd.truth.evaluate import evaluate

SMALL = ResNetConfig("basic", (1, 2), 10, 3, 33, (16, 24))  # 33x33: odd maps all the way


@pytest.fixture(scope="module")
def model():
    return builtin_model(SMALL, "small", batch=2)


@pytest.fixture(scope="module")
def tiny():
    return builtin_model(ResNetConfig("basic", (1,), 10, 3, 9, (16,), small_stem=True), "tiny")


@pytest.fixture(scope="module")
def artifact(model, tmp_path_factory):
    return tvm_winograd.compile(model, output=tmp_path_factory.mktemp("a") / "small")


@pytest.fixture(scope="module")
def x(model):
    return np.random.default_rng(1).standard_normal(model.inputs[0].shape).astype("float32")


def test_result_and_verify(model, artifact, x):
    want = evaluate(model.mod, model.params, [x])[0]
    assert reference.relative_error(artifact.run(x), want) < 2e-6
    report = verify(artifact, model)
    assert report.ok and len(report.layers) == 8
    assert max(r.error for r in report.layers) < 1e-6


def test_verify_finds_a_wrong_weight(artifact, model):
    """A check that cannot fail is none: other weights than the artifact's must fail it."""
    from dataclasses import replace

    wrong = dict(model.params)
    wrong["layer2.1.conv2.weight"] = wrong["layer2.1.conv2.weight"] * np.float32(1.00001)
    report = verify(artifact, replace(model, params=wrong))
    assert not report.ok
    assert [r.name for r in report.layers if not r.ok] == ["layer2.1.conv2"]


def test_manifest(artifact):
    module = artifact.manifest["modules"][0]
    layers = {layer["name"]: layer for layer in module["layers"]}
    assert list(layers)[:2] == ["conv1", "layer1.0.conv1"] and len(layers) == 8
    assert layers["layer1.0.conv2"]["epilogue"] == "bias+residual+relu"
    assert layers["layer2.0.downsample.0"]["epilogue"] == "bias"
    for layer in layers.values():
        assert layer["source"] in ("explicit", "log", "log-nearest", "default", "fallback")
        assert layer["reason"] and layer["config"] is not None
        ConvSpec.from_key(layer["spec"])
    functions = {f["name"]: f for f in module["functions"]}
    assert {layer["function"] for layer in layers.values()} <= set(functions)
    assert all(f["source"] and f["reason"] and f["schedule"] for f in functions.values())


@pytest.mark.parametrize("form", ["pt2", "onnx"])
def test_other_frontends_agree(form, model, artifact, x, tmp_path):
    torch = pytest.importorskip("torch")
    from tvm_winograd.bench.network.torch_networks import torch_network

    net, sample = torch_network(SMALL, model.params), (torch.from_numpy(x),)
    path = tmp_path / f"small.{form}"
    if form == "pt2":
        torch.export.save(torch.export.export(net, sample), path)
    else:
        torch.onnx.export(net, sample, path, dynamo=True, external_data=False, verbose=False)
    other = tvm_winograd.compile(path, output=tmp_path / form)
    want = evaluate(model.mod, model.params, [x])[0]
    direct = reference.relative_error(net(*sample).detach().numpy(), want)
    assert reference.relative_error(other.run(x), want) <= 2 * direct
    epilogues = [layer["epilogue"] for layer in other.manifest["modules"][0]["layers"]]
    assert epilogues.count("bias+residual+relu") == 3


def test_explicit_config_of_one_layer(model, tmp_path):
    name, spec = "layer1.0.conv1", ConvSpec(2, 16, 9, 9, 16)
    from tvm_winograd.gpu import host_cpu

    config = direct_cpu.KERNEL.configs(spec, host_cpu())[-1]
    made = tvm_winograd.compile(model, output=tmp_path / "a", configs={name: config})
    layers = {layer["name"]: layer for layer in made.manifest["modules"][0]["layers"]}
    assert [n for n, layer in layers.items() if layer["source"] == "explicit"] == [name]


def test_explicit_config_too_large_for_ptx(tiny, tmp_path):
    """A config for the architecture asked for; the PTX for other GPUs keeps its own."""
    config = winograd_fused.Fused()
    made = tvm_winograd.compile(
        tiny, target="cuda", output=tmp_path / "a", configs={"layer1.0.conv1": config}
    )
    chosen = {
        module["name"]: layer
        for module in made.manifest["modules"]
        for layer in module["layers"]
        if layer["name"] == "layer1.0.conv1"
    }
    assert chosen["sm_90"]["source"] == "explicit"
    assert chosen["sm_90"]["config"] == config_dict(config)
    assert chosen["ptx"]["source"] == "default"


@pytest.mark.parametrize("target", ["llvm", "cuda"])
def test_compiled_side_by_side_as_one_by_one(target, tiny, tmp_path, monkeypatch):
    def compile_with(builders: int) -> tuple[dict, list]:
        pool, steps = partial(ThreadPoolExecutor, builders), []
        monkeypatch.setattr(compiler, "ThreadPoolExecutor", lambda count: pool())
        path = tmp_path / str(builders)
        options = {"target": target, "batch": (1, 3), "output": path, "progress": steps.append}
        manifest = tvm_winograd.compile(tiny, cache=False, **options).manifest
        files = [f for f in sorted(path.rglob("*")) if f.is_file() and f.name != "manifest.json"]
        content = {str(f.relative_to(path)): f.read_bytes() for f in files}
        said = [
            step for step in steps[:-1] if not re.match("compiling [a-z]", step)
        ]  # by the clock
        return {**content, "manifest": {**manifest, "created": None}}, said

    assert compile_with(1) == compile_with(4)


def test_a_long_compilation_says_what_it_waits_for(tiny, tmp_path, monkeypatch):
    build, steps = library.build.build, []

    def slow(*args, **options):
        time.sleep(0.5)
        return build(*args, **options)

    monkeypatch.setattr(library.build, "build", slow)
    monkeypatch.setattr(compiler, "_SAY_SECONDS", 0.1)
    how = {"batch": (1, 3), "progress": steps.append, "cache": False}
    tvm_winograd.compile(tiny, output=tmp_path / "a", **how)
    assert "compiling cpu-b1, cpu-b2, cpu-b3" in steps


def test_an_error_of_a_builder_is_the_callers(tiny, tmp_path, monkeypatch):
    def fail(*args, **options):
        raise BuildError("no space left")

    monkeypatch.setattr(library.build, "build", fail)
    with pytest.raises(BuildError, match="no space left"):
        tvm_winograd.compile(tiny, batch=(1, 3), output=tmp_path / "a", cache=False)
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"dtype": "float16"}, "float16.*float32"),
        ({"target": "metal"}, "metal.*llvm, cuda"),
        ({"arch": "sm_90"}, "target cuda"),
        ({"target": "cuda", "arch": "sm_35"}, "sm_35.*sm_75"),
        ({"logs": "no/such/folder"}, "no/such/folder"),
        ({"algorithm": "fft"}, "fft.*auto"),
        ({"batch": 0}, "batch"),
        ({"configs": {"layer9.conv": None}}, "layer9.conv"),
    ],
)
def test_refused_before_work_is_lost(options, match, model, tmp_path):
    with pytest.raises(TvmWinogradError, match=match):
        tvm_winograd.compile(model, output=tmp_path / "a", **options)
    assert not (tmp_path / "a").exists()


def test_unknown_model_is_refused():
    with pytest.raises(TvmWinogradError, match="resnet18"):
        load_model("resnet19")
