"""The artifact folder: written whole, read with every field checked."""

from __future__ import annotations

import json
import stat

import numpy as np
import pytest
from helpers_small_model import built, example_input, params, reference, write

from tvm_winograd.codegen.artifact import Artifact, BuiltModule, check_files, read_manifest
from tvm_winograd.deploy.manifest import FORMAT_VERSION, sha256
from tvm_winograd.errors import ArtifactError, BuildError


@pytest.fixture(scope="module")
def cpu_module() -> BuiltModule:
    return built()


@pytest.fixture(scope="module")
def gpu_modules() -> list[BuiltModule]:
    return [built("sm_75"), built("sm_90"), built("ptx")]


@pytest.fixture
def artifact(tmp_path, cpu_module) -> Artifact:
    return write(tmp_path / "a", cpu_module, labels=["cat", "dog"], preprocess={"size": 224})


def edit(artifact: Artifact, change) -> None:
    """Changes the manifest on disk."""
    file = artifact.path / "manifest.json"
    manifest = json.loads(file.read_text())
    change(manifest)
    file.write_text(json.dumps(manifest))


def test_round_trip(artifact, cpu_module):
    manifest = read_manifest(artifact.path)
    assert manifest == artifact.manifest
    assert manifest["inputs"] == [{"name": "x", "shape": [4, 32], "dtype": "float32"}]
    assert manifest["modules"][0]["layers"] == [{"name": "layer0"}]
    assert manifest["modules"][0]["params"]["names"] == list(cpu_module.params)
    assert manifest["preprocess"] == {"size": 224}
    assert (artifact.path / "labels.txt").read_text() == "cat\ndog\n"
    assert manifest["versions"]["cuda_compiler"] is None
    on_disk = {p.relative_to(artifact.path).as_posix() for p in artifact.path.rglob("*.*")}
    assert on_disk == {*manifest["files"], "manifest.json"}
    artifact.check()
    x = example_input()
    np.testing.assert_allclose(artifact.run(x), reference(x, params()), rtol=1e-5, atol=1e-5)


def test_folder_is_readable_by_others(artifact):
    assert stat.S_IMODE(artifact.path.stat().st_mode) & 0o055 == 0o055 & ~_umask()


def _umask() -> int:
    import os

    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_equal_tensors_are_stored_once(tmp_path, gpu_modules):
    artifact = write(tmp_path / "a", *gpu_modules)
    weights = params()
    assert artifact.manifest["params"]["tensors"] == len(weights)
    size = (artifact.path / "params.bin").stat().st_size
    assert size == artifact.manifest["params"]["bytes"]
    assert size <= sum(v.nbytes for v in weights.values()) + 64 * len(weights)
    assert [m["kind"] for m in artifact.manifest["modules"]] == ["cubin", "cubin", "ptx"]
    assert artifact.manifest["versions"]["cuda_compiler"].startswith("nvrtc 13")


def test_several_dtypes_and_strides_are_stored_as_they_are(tmp_path):
    import ml_dtypes
    import tvm_ffi

    from tvm_winograd.deploy.loading import load_params, load_runtime
    from tvm_winograd.deploy.memory import Memory

    values = {
        "half": np.arange(6, dtype="float16").reshape(2, 3),
        "transposed": np.arange(6, dtype="float32").reshape(2, 3).T,
        "bf16": np.arange(5).astype(ml_dtypes.bfloat16),
        "int": np.array([-1, 7], "int32"),
        "scalar": np.array(3.5, "float32"),
        "one": np.full((2, 3), 1.0, "float32"),
    }
    module = BuiltModule("cpu", "cpu", "llvm", built().library, values)
    artifact = write(tmp_path / "a", module)
    load_runtime()
    index = (artifact.path / "cpu" / "tensor-cache.json", len(values))
    memory = Memory(tvm_ffi.device("cpu", 0))
    (loaded, again) = load_params(artifact.path / "params.bin", [index, index], memory)
    assert all(a.same_as(b) for a, b in zip(loaded, again, strict=True))
    for tensor, (name, value) in zip(loaded, values.items(), strict=True):
        assert tuple(tensor.shape) == value.shape and str(tensor.dtype) == str(value.dtype), name
        assert tensor.numpy().tobytes() == np.ascontiguousarray(value).tobytes(), name


def test_no_params_at_all(tmp_path):
    module = BuiltModule("cpu", "cpu", "llvm", built().library, {})
    write(tmp_path / "a", module).check()


def test_an_artifact_is_replaced_and_nothing_else_is(tmp_path, cpu_module):
    path = tmp_path / "a"
    write(path, cpu_module, labels=["old"])
    assert write(path, cpu_module).manifest["labels"] is None
    assert not (path / "labels.txt").exists()
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.tex").write_text("dear")
    with pytest.raises(ArtifactError, match="not an artifact of ours"):
        write(other, cpu_module)
    (other / "manifest.json").write_text('{"format": "something else"}')
    with pytest.raises(ArtifactError, match="not an artifact of ours"):
        write(other, cpu_module)
    assert (other / "thesis.tex").read_text() == "dear"
    with pytest.raises(ArtifactError, match="is not a folder"):
        write(other / "thesis.tex", cpu_module)
    (tmp_path / "empty").mkdir()
    write(tmp_path / "empty", cpu_module)


def test_a_failure_leaves_the_old_artifact(tmp_path, cpu_module, gpu_modules):
    artifact = write(tmp_path / "a", cpu_module)
    before = {p: sha256(p) for p in artifact.path.rglob("*.*")}
    ptx = gpu_modules[-1]
    wrong = BuiltModule("sm_90", "sm_90", "cubin", ptx.library, ptx.params)
    with pytest.raises(BuildError, match="ptx where"):
        write(artifact.path, wrong)
    with pytest.raises(ArtifactError, match="every name may occur once"):
        write(artifact.path, cpu_module, cpu_module)
    assert {p: sha256(p) for p in artifact.path.rglob("*.*")} == before
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda m: m.update(format="x"), "is not ours"),
        (lambda m: m.update(format_version=FORMAT_VERSION + 1), "update tvm-winograd"),
        (lambda m: m.update(format_version="1"), "format_version is a str"),
        (lambda m: m.pop("inputs"), "has no 'inputs'"),
        (lambda m: m.update(target="metal"), "target is 'metal': supported are llvm, cuda"),
        (lambda m: m.update(outputs=None), "outputs is null"),
        (lambda m: m["inputs"][0].update(shape=[4, "n"]), "positive integers"),
        (lambda m: m["inputs"][0].pop("dtype"), r"inputs\[0\] has no 'dtype'"),
        (lambda m: m.update(modules=[]), "modules is empty"),
        (lambda m: m["modules"][0].update(kind="exe"), "kind is 'exe'"),
        (lambda m: m["modules"][0].update(name="../x"), "letters, digits"),
        (lambda m: m["modules"][0].update(file="cpu/other.so"), "no checksum of cpu/other.so"),
        (lambda m: m["files"].update({"../../etc/passwd": "0"}), "bad entry '../../etc/passwd'"),
        (lambda m: m["versions"].pop("tvm"), "versions has no 'tvm'"),
        (lambda m: m.update(modules=[3]), r"modules\[0\] is a int: an object"),
    ],
)
def test_damaged_manifests(artifact, change, message):
    edit(artifact, change)
    with pytest.raises(ArtifactError, match=message):
        Artifact(artifact.path)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"a": NaN'])
def test_manifests_that_are_no_manifest(artifact, text):
    (artifact.path / "manifest.json").write_text(text)
    with pytest.raises(ArtifactError, match=r"damaged|is not ours"):
        read_manifest(artifact.path)


def test_not_text_at_all(artifact):
    (artifact.path / "manifest.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ArtifactError, match="damaged"):
        read_manifest(artifact.path)


@pytest.mark.parametrize("place", ["", "nowhere"])
def test_no_artifact(tmp_path, place):
    with pytest.raises(ArtifactError, match="is no artifact"):
        Artifact(tmp_path / place)


@pytest.mark.parametrize(
    "name", ["params.bin", "cpu/module.so", "cpu/tensor-cache.json", "labels.txt"]
)
def test_damaged_and_missing_files(artifact, name):
    file = artifact.path / name
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(ArtifactError, match=f"{name} is damaged"):
        check_files(artifact.path, artifact.manifest)
    with pytest.raises(ArtifactError, match=f"{name} is damaged"):
        artifact.load()
    file.unlink()
    with pytest.raises(ArtifactError, match=f"{name} is missing"):
        artifact.run(example_input())


def test_reading_the_manifest_needs_no_tvm(artifact):
    import subprocess
    import sys

    code = (
        "import sys; from tvm_winograd.codegen.artifact import Artifact; "
        "print(Artifact(sys.argv[1])); assert not {'tvm', 'tvm_ffi'} & set(sys.modules)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, artifact.path], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0 and "modules=cpu" in ran.stdout, ran.stderr
