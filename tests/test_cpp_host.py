"""The C++ host in examples/cpp: built with the flags of the wheels, same bits as Python."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from gpu import has_gpu, needs_gpu
from helpers_small_model import built, example_input, write

import tvm_winograd
from tvm_winograd.cli.cppflags import cpp_flags
from tvm_winograd.errors import BuildError

SOURCE = Path(__file__).parents[1] / "examples" / "cpp"

pytestmark = pytest.mark.skipif(not shutil.which("g++"), reason="no g++")


def run(*command: object) -> subprocess.CompletedProcess:
    return subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def host(tmp_path_factory) -> Path:
    program = tmp_path_factory.mktemp("cpp") / "host"
    try:
        cpp_flags()
    except BuildError as error:
        pytest.skip(f"no C++ headers here: {error}")
    made = run("g++", "-O1", "-Wall", SOURCE / "host.cc", *shlex.split(cpp_flags()), "-o", program)
    assert made.returncode == 0, made.stderr
    assert "warning" not in made.stderr, made.stderr
    return program


@pytest.fixture(scope="module")
def artifact(tmp_path_factory):
    return write(tmp_path_factory.mktemp("artifacts") / "cpu")


def test_same_bits_as_python(host, artifact, tmp_path):
    for seed in (1, 2):
        x = example_input(seed)
        np.save(tmp_path / "x.npy", x)
        ran = run(host, artifact.path / "cpu", "cpu", tmp_path / "x.npy", tmp_path / "y.npy")
        assert ran.returncode == 0, ran.stderr
        y = np.load(tmp_path / "y.npy")
        assert y.dtype == np.float32 and np.array_equal(y, tvm_winograd.load(artifact.path).run(x))


def test_errors(host, artifact, tmp_path):
    module, y = artifact.path / "cpu", tmp_path / "y.npy"
    np.save(tmp_path / "x.npy", example_input())
    np.save(tmp_path / "wide.npy", example_input().astype("float64"))
    np.save(tmp_path / "batch.npy", example_input()[:1])
    (tmp_path / "text.npy").write_text("no array")
    for arguments, code, message in [
        ((), 2, "usage"),
        ((module, "tpu", tmp_path / "x.npy", y), 2, "usage"),
        ((tmp_path, "cpu", tmp_path / "x.npy", y), 1, "module.so"),
        ((module, "cpu", tmp_path / "none.npy", y), 1, "is no .npy"),
        ((module, "cpu", tmp_path / "text.npy", y), 1, "is no .npy"),
        ((module, "cpu", tmp_path / "wide.npy", y), 1, "not float32"),
        ((module, "cpu", tmp_path / "batch.npy", y), 1, "shape"),
        ((module, "cpu", tmp_path / "x.npy", tmp_path / "no" / "y.npy"), 1, "cannot write"),
    ]:
        ran = run(host, *arguments)
        assert ran.returncode == code and message in ran.stderr, (arguments, ran.stderr)
    assert not y.exists()


def test_a_batch_that_varies(host, tmp_path):
    from test_batches import HIGH, chain, images

    made = tvm_winograd.compile(chain(), batch=(1, HIGH), buckets=[2, HIGH], output=tmp_path / "a")
    for count in range(1, HIGH + 2):
        x = images(count)
        np.save(tmp_path / "x.npy", x)
        ran = run(host, made.path / "cpu", "cpu", tmp_path / "x.npy", tmp_path / "y.npy")
        if count > HIGH:
            assert ran.returncode == 1 and "a batch of 6: this artifact takes up to 5" in ran.stderr
        else:
            assert ran.returncode == 0, ran.stderr
            assert np.array_equal(np.load(tmp_path / "y.npy"), made.run(x))


@pytest.mark.skipif(has_gpu(), reason="there is a GPU")
def test_cuda_without_a_driver(host, artifact, tmp_path):
    ran = run(host, artifact.path / "cpu", "cuda", tmp_path / "x.npy", tmp_path / "y.npy")
    assert ran.returncode == 1 and "libcuda.so.1" in ran.stderr


@pytest.mark.skipif(not shutil.which("cmake"), reason="no cmake")
def test_cmake_builds_it(artifact, tmp_path):
    configured = run(
        "cmake", "-S", SOURCE, "-B", tmp_path / "build", f"-DPython_EXECUTABLE={sys.executable}"
    )
    assert configured.returncode == 0, configured.stderr
    made = run("cmake", "--build", tmp_path / "build")
    assert made.returncode == 0, made.stderr
    np.save(tmp_path / "x.npy", example_input())
    program = tmp_path / "build" / "host"
    ran = run(program, artifact.path / "cpu", "cpu", tmp_path / "x.npy", tmp_path / "y.npy")
    assert ran.returncode == 0, ran.stderr


@pytest.mark.gpu
@needs_gpu
def test_gpu_same_bits_as_python(host, tmp_path):
    artifact = write(tmp_path / "a", built("sm_90"))
    x = example_input()
    np.save(tmp_path / "x.npy", x)
    ran = run(host, artifact.path / "sm_90", "cuda", tmp_path / "x.npy", tmp_path / "y.npy")
    assert ran.returncode == 0, ran.stderr
    assert np.array_equal(np.load(tmp_path / "y.npy"), artifact.run(x))
