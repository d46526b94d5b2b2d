"""A module's library is taken from an earlier run where nothing has changed, and only there."""

from __future__ import annotations

import pytest

import tvm_winograd
from tvm_winograd.codegen import library
from tvm_winograd.frontend import builtin
from tvm_winograd.frontend.resnet import ResNetConfig

TINY = ResNetConfig("basic", (1,), 10, 3, 9, (8,), small_stem=True)


@pytest.fixture
def builds(tmp_path, monkeypatch):
    """What is built from here on; nothing has been before."""
    monkeypatch.setitem(builtin.BUILTINS, "tiny", TINY)
    monkeypatch.setenv("TVM_WINOGRAD_CACHE", str(tmp_path / "cache"))
    done, build = [], library.build.build
    monkeypatch.setattr(library.build, "build", lambda *a, **k: done.append(1) or build(*a, **k))
    return done


def compiled(tmp_path, name, **options):
    artifact = tvm_winograd.compile("tiny", output=tmp_path / name, **options)
    return [(artifact.path / m["file"]).read_bytes() for m in artifact.manifest["modules"]]


def test_an_equal_module_is_built_once(tmp_path, builds):
    first = compiled(tmp_path, "a")
    assert compiled(tmp_path, "b", seed=3) == first and len(builds) == 1  # weights are no part
    assert compiled(tmp_path, "c", cache=False) == first and len(builds) == 2
    compiled(tmp_path, "d", batch=2)
    compiled(tmp_path, "e", cpu="x86-64-v3")
    assert len(builds) == 4


def test_another_code_or_compiler_builds_again(tmp_path, builds, monkeypatch):
    compiled(tmp_path, "a")
    monkeypatch.setattr(library, "_code_between", lambda: "another")
    compiled(tmp_path, "b")
    monkeypatch.setattr(library, "package_version", lambda name: "2.0")
    compiled(tmp_path, "c")
    assert len(builds) == 3


def test_what_is_damaged_is_built_again(tmp_path, builds):
    first = compiled(tmp_path, "a")
    for path in (tmp_path / "cache").iterdir():
        path.write_bytes(path.read_bytes()[:-100])
    assert compiled(tmp_path, "b") == first and len(builds) == 2


def test_the_manifest_names_the_compiler_of_kept_code(tmp_path, builds):
    options = {"target": "cuda", "arch": "sm_80", "ptx": False}
    for name in "ab":
        artifact = tvm_winograd.compile("tiny", output=tmp_path / name, **options)
        assert artifact.manifest["versions"]["cuda_compiler"].startswith("nvrtc")
    assert len(builds) == 1
