"""Artifacts for other CPUs, and several at once."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tiny_network import tiny as small_model

import tvm_winograd
from tvm_winograd import gpu
from tvm_winograd.codegen.artifact import read_manifest
from tvm_winograd.deploy import cpu
from tvm_winograd.errors import ArtifactError, UnsupportedError
from tvm_winograd.gpu import cpu_for, host_cpu


def module(arch: str, *features: str, **device) -> dict:
    return {"name": arch, "arch": arch, "device": {"cpu": arch, "features": [*features], **device}}


@pytest.fixture
def has(monkeypatch):
    def set_features(*names: str) -> None:
        monkeypatch.setattr(cpu, "features", lambda: frozenset(names))

    return set_features


def test_the_best_module_that_fits(has) -> None:
    modules = [
        module("v2", "sse4.2"),
        module("v4", "sse4.2", "avx512f", "avx2"),
        module("v3", "sse4.2", "avx2"),
    ]
    for features, wanted in ((("sse4.2", "avx2"), "v3"), (("sse4.2",), "v2")):
        has(*features)
        assert [m["arch"] for m in cpu.choose(modules)] == [wanted]
    has("sse4.2", "avx2", "avx512f")
    assert cpu.choose(modules)[0]["arch"] == "v4"


def test_none_fits(has) -> None:
    has("avx2")
    with pytest.raises(ArtifactError, match=r"v4 .*needs avx512f, which it lacks.*--cpu"):
        cpu.choose([module("v4", "avx512f", "avx2")])
    with pytest.raises(ArtifactError, match="a riscv64 CPU"):
        cpu.choose([module("u", machine="riscv64")])


def test_old_artifacts_and_unknown_machines_are_tried(has, monkeypatch, tmp_path) -> None:
    has()
    old = {"name": "cpu", "arch": "cpu", "device": None}
    assert cpu.choose([old]) == [old]
    monkeypatch.undo()
    cpu.features.cache_clear()
    monkeypatch.setattr(cpu, "_CPUINFO", tmp_path / "none")
    assert cpu.features() is None and not cpu.lacking(module("v4", "avx512f"))
    cpu.features.cache_clear()


def test_every_feature_of_this_cpu_that_is_checked_is_seen() -> None:
    found = cpu.features()
    assert found is not None and {"ssse3", "sse4.2", "popcnt"} <= found
    assert {"avx2", "fma"} <= set(cpu.needed(cpu_for("x86-64-v3").features))


def test_names() -> None:
    assert cpu_for("native") == host_cpu()
    assert cpu_for("x86-64-v4").vector_bits == 512 and cpu_for("x86-64-v2").vector_bits == 128
    with pytest.raises(UnsupportedError, match=r"pentium-9000.*x86-64-v3"):
        cpu_for("pentium-9000")
    with pytest.raises(UnsupportedError, match="target llvm only"):
        tvm_winograd.compile("resnet18", target="cuda", cpu="x86-64-v3")


def test_a_guest_whose_features_are_masked(monkeypatch, tmp_path: Path) -> None:
    """A hypervisor hides what LLVM expects of the model that it names: code does without."""
    real, v3 = cpu.features() or frozenset(), frozenset(cpu.needed(cpu_for("x86-64-v3").features))
    monkeypatch.setattr(gpu, "features", lambda: real & v3)
    masked = host_cpu()
    assert masked.vector_bits == 256 and masked.cpu == cpu_for("native").cpu
    assert not set(cpu.needed(masked.features)) - v3
    made = tvm_winograd.compile(small_model(), output=tmp_path / "a")
    monkeypatch.setattr(cpu, "features", lambda: real & v3)
    x = np.zeros(small_model().inputs[0].shape, "float32")
    assert np.isfinite(tvm_winograd.load(made.path).run(x)).all()


@pytest.mark.parametrize("features", [3, [None], [[1]], "avx2", {"avx2": 1}])
def test_features_that_are_no_names(features, tmp_path: Path) -> None:
    made = tvm_winograd.compile(small_model(), output=tmp_path / "a")
    file = made.path / "manifest.json"
    manifest = json.loads(file.read_text())
    manifest["modules"][0]["device"]["features"] = features
    file.write_text(json.dumps(manifest))
    with pytest.raises(ArtifactError, match=r"device.features is .*a list of names"):
        tvm_winograd.load(made.path)


def test_several_cpus_in_one_artifact(tmp_path: Path, monkeypatch) -> None:
    model = small_model()
    made = tvm_winograd.compile(model, cpu="x86-64-v2,x86-64-v3", output=tmp_path / "a")
    assert [m["name"] for m in made.manifest["modules"]] == ["x86-64-v2", "x86-64-v3"]
    x = np.random.default_rng(0).standard_normal(model.inputs[0].shape).astype("float32")
    results = []
    for features in (cpu_for("x86-64-v2").features, cpu_for("x86-64-v3").features):
        monkeypatch.setattr(cpu, "features", lambda f=features: frozenset(cpu.needed(f)))
        runner = tvm_winograd.load(tmp_path / "a")
        results.append((runner.module["name"], runner.run(x)))
    assert [name for name, _ in results] == ["x86-64-v2", "x86-64-v3"]
    assert np.allclose(results[0][1], results[1][1], atol=1e-4)
    device = read_manifest(tmp_path / "a")["modules"][1]["device"]
    assert device["cpu"] == "x86-64-v3" and "avx2" in device["features"]


def test_the_host_module_says_what_it_needs(tmp_path: Path, monkeypatch) -> None:
    made = tvm_winograd.compile(small_model(), output=tmp_path / "a")
    (entry,) = made.manifest["modules"]
    assert entry["arch"] == "cpu" and entry["device"]["cpu"] == host_cpu().cpu
    monkeypatch.setattr(cpu, "features", lambda: frozenset())
    with pytest.raises(ArtifactError, match="which it lacks"):
        tvm_winograd.load(tmp_path / "a")
    manifest = json.loads((tmp_path / "a" / "manifest.json").read_text())
    manifest["modules"][0]["device"] = None  # as versions before wrote it
    (tmp_path / "a" / "manifest.json").write_text(json.dumps(manifest))
    tvm_winograd.load(tmp_path / "a")
