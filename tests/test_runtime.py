"""The deploy side: what is loaded, what is chosen, what is refused."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from gpu import has_gpu, needs_gpu
from helpers_small_model import built, example_input, params, reference, write

import tvm_winograd
from tvm_winograd.deploy import libraries
from tvm_winograd.deploy.loading import check_versions
from tvm_winograd.deploy.manifest import sha256
from tvm_winograd.errors import ArtifactError, InputError

CLOSE = {"rtol": 1e-5, "atol": 1e-5}  # float32 sums of 32 products


@pytest.fixture(scope="module")
def artifact(tmp_path_factory):
    return write(tmp_path_factory.mktemp("artifacts") / "cpu")


@pytest.fixture(scope="module")
def cuda_artifact(tmp_path_factory):
    return write(tmp_path_factory.mktemp("artifacts") / "cuda", built("sm_90"), built("ptx"))


@pytest.fixture(scope="module")
def runner(artifact):
    return tvm_winograd.load(artifact.path)


DEPLOY = """
import sys
import numpy as np
import tvm_winograd
x = np.load(sys.argv[2])
np.save(sys.argv[3], tvm_winograd.load(sys.argv[1]).run(x))
ours = {m.split(".")[1] for m in sys.modules if m.startswith("tvm_winograd.")}
assert ours == {"deploy", "errors"}, ours
assert "tvm" not in sys.modules
maps = open("/proc/self/maps").read()
assert "libtvm_runtime.so" in maps
assert "libtvm_compiler" not in maps
"""


def test_no_compiler_is_loaded(artifact, runner, tmp_path):
    x = example_input()
    np.save(tmp_path / "x.npy", x)
    command = [sys.executable, "-c", DEPLOY, artifact.path, tmp_path / "x.npy", tmp_path / "y.npy"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    y = np.load(tmp_path / "y.npy")
    np.testing.assert_allclose(y, reference(x, params()), **CLOSE)
    assert np.array_equal(y, runner.run(x))  # the same with all of TVM loaded


def test_two_artifacts_keep_their_own_parameters(tmp_path):
    first, second = (write(tmp_path / str(s), built(seed=s)).load() for s in (0, 5))
    x = example_input()
    np.testing.assert_allclose(first.run(x), reference(x, params(0)), **CLOSE)
    np.testing.assert_allclose(second.run(x), reference(x, params(5)), **CLOSE)
    np.testing.assert_allclose(first.run(2 * x), reference(2 * x, params(0)), **CLOSE)


def test_an_artifact_replaced_in_this_process(tmp_path):
    x, first = example_input(), write(tmp_path / "a").load()
    one = first.run(x)
    second = write(tmp_path / "a", built(two_outputs=True)).load()
    assert isinstance(second.run(x), tuple)
    assert np.array_equal(first.run(x), one)  # the old one runs on


def test_several_outputs_come_as_a_tuple(tmp_path):
    runner = write(tmp_path / "a", built(two_outputs=True)).load()
    x = example_input()
    out = runner.run(x)
    assert isinstance(out, tuple) and len(out) == 2
    for got, wanted in zip(out, reference(x, params(), two=True), strict=True):
        np.testing.assert_allclose(got, wanted, **CLOSE)
    import tvm_ffi

    tensors = runner.run(tvm_ffi.from_dlpack(aligned(x)))
    assert all(np.array_equal(np.from_dlpack(t), a) for t, a in zip(tensors, out, strict=True))


def aligned(x: np.ndarray) -> np.ndarray:
    space = np.empty(x.nbytes + 64, "uint8")
    start = -space.ctypes.data % 64
    out = space[start : start + x.nbytes].view(x.dtype).reshape(x.shape)
    out[...] = x
    return out


def test_dlpack_in_dlpack_out(runner):
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(aligned(example_input()))
    out = runner.run(x)
    assert hasattr(out, "__dlpack__") and not isinstance(out, np.ndarray)
    assert np.array_equal(torch.from_dlpack(out).numpy(), runner.run(x.numpy()))
    pointers = []
    call = runner._main
    try:
        runner._main = lambda *args: pointers.append(args[0].data_ptr()) or call(*args)
        runner.run(x)
    finally:
        runner._main = call
    assert pointers == [x.data_ptr()]  # no copy was made


def test_any_numpy_strides_are_copied(runner):
    x = example_input()
    wide = np.repeat(x, 2, axis=1)[:, ::2]
    assert not wide.flags.c_contiguous
    assert np.array_equal(runner.run(wide), runner.run(x))
    assert np.array_equal(runner.run(np.asfortranarray(x)), runner.run(x))


def test_results_are_the_callers_own(runner):
    x = example_input()
    first = runner.run(x)
    kept = first.copy()
    first += 1  # writable
    assert np.array_equal(runner.run(x), kept)
    runner.run(-x)
    assert np.array_equal(first, kept + 1)


@pytest.mark.parametrize(
    "inputs, message",
    [
        ((), "0 inputs given, the model takes 1: x"),
        ((example_input(), example_input()), "2 inputs given"),
        ((example_input().astype("float64"),), 'has dtype float64.*x.astype\\("float32"\\)'),
        ((example_input().astype(">f4"),), "has dtype >f4"),
        ((example_input()[:2],), r"has shape \(2, 32\).*compile with --batch 2"),
        ((example_input().ravel(),), r"has shape \(128,\), the model takes \(4, 32\)$"),
        ((example_input().tolist(),), "is a list: a numpy array or a tensor"),
        ((None,), "is a NoneType"),
    ],
)
def test_wrong_inputs(runner, inputs, message):
    for call in (runner.run, runner.time):
        with pytest.raises(InputError, match=message):
            call(*inputs)


def test_wrong_dlpack_inputs(runner):
    torch = pytest.importorskip("torch")
    base = torch.zeros(1024)
    good = base[:128].reshape(4, 32)
    for value, message in [
        (torch.zeros(32, 4).T, r"not contiguous: pass x.contiguous\(\)"),
        (base[1:129].reshape(4, 32), "not aligned to 64 bytes"),
        (good.double(), "has dtype float64"),
        (torch.zeros(3, 32), r"has shape \(3, 32\)"),
        (good.clone().requires_grad_(), None),
    ]:
        if message is None:
            runner.run(value)  # tvm_ffi shares it without asking for gradients
            continue
        with pytest.raises(InputError, match=message):
            runner.run(value)


def test_streams_are_for_cuda(runner):
    with pytest.raises(InputError, match="runs on the CPU"):
        runner.run(example_input(), stream=7)
    with pytest.raises(InputError, match="stream is a str"):
        runner.run(example_input(), stream="fast")


def test_time(runner):
    seconds = runner.time(example_input(), repeats=4)
    assert len(seconds) == 4 and all(0 < s < 1 for s in seconds)
    with pytest.raises(InputError, match="at least 1"):
        runner.time(example_input(), repeats=0)


def test_wrong_device(artifact):
    with pytest.raises(ArtifactError, match="compiled for llvm"):
        tvm_winograd.load(artifact.path, "cuda")


@pytest.mark.skipif(has_gpu(), reason="there is a GPU")
@pytest.mark.parametrize("stub", [False, True])
def test_cuda_without_a_gpu(cuda_artifact, stub):
    """With and without build's stand-in for the driver in the process."""
    code = f"""
import sys, tvm_winograd
if {stub}:
    from tvm_winograd.codegen.build import ensure_cuda_codegen
    ensure_cuda_codegen()
try:
    tvm_winograd.load(sys.argv[1])
except tvm_winograd.TvmWinogradError as error:
    print(type(error).__name__, error)
"""
    command = [sys.executable, "-c", code, cuda_artifact.path]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    wanted = "0 usable GPUs" if stub else "no NVIDIA driver"
    assert ran.stdout.startswith("ArtifactError") and wanted in ran.stdout, ran.stderr
    assert "--target llvm" in ran.stdout


def test_another_tvm_release(artifact, monkeypatch):
    monkeypatch.setattr(libraries, "tvm_version", lambda: "0.28.1")
    with pytest.raises(ArtifactError, match=r"TVM 0.27.0.post1, installed is 0.28.1: pip install"):
        tvm_winograd.load(artifact.path)
    check_versions({"versions": {"tvm": "0.28.1.dev3"}})  # the same release


def test_libraries_that_do_not_load(tmp_path):
    """With checksums that match: what is in the files was wrong from the start."""
    for name, content, message in [
        ("cpu/module.so", b"not a library", "module.so cannot be loaded"),
        ("cpu/tensor-cache.json", b"{}", "parameters of .* cannot be loaded"),
        ("params.bin", b"short", "parameters of .* cannot be loaded"),
    ]:
        artifact = write(tmp_path / name.replace("/", "-"))
        (artifact.path / name).write_bytes(content)
        manifest = artifact.manifest
        manifest["files"][name] = sha256(artifact.path / name)
        (artifact.path / "manifest.json").write_text(json.dumps(manifest))
        with pytest.raises(ArtifactError, match=message):
            tvm_winograd.load(artifact.path)


@pytest.mark.gpu
@needs_gpu
def test_gpu_runs_cubin_and_ptx(tmp_path):
    x = example_input()
    for number, name in enumerate(("sm_90", "ptx")):
        runner = write(tmp_path / str(number), built(name)).load()
        assert runner.module["name"] == name and runner.device.type == "cuda"
        np.testing.assert_allclose(runner.run(x), reference(x, params()), **CLOSE)
        assert len(runner.time(x, repeats=3)) == 3


@pytest.mark.gpu
@needs_gpu
def test_gpu_streams_and_dlpack(cuda_artifact):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch without CUDA")
    runner = cuda_artifact.load()
    x = torch.from_numpy(example_input()).cuda()
    wanted = runner.run(x.cpu().numpy())
    for stream in (None, torch.cuda.Stream(), torch.cuda.Stream()):
        if stream is not None:
            stream.wait_stream(torch.cuda.current_stream())
        out = torch.from_dlpack(runner.run(x, stream=stream))
        torch.cuda.synchronize()
        assert out.is_cuda and np.array_equal(out.cpu().numpy(), wanted)
        assert np.array_equal(runner.run(x.cpu().numpy(), stream=stream), wanted)
    with pytest.raises(InputError, match="is on cpu"):
        runner.run(x.cpu())
