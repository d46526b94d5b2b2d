"""What only a GPU can show: races, memory errors, whole networks. See also test_cases.py."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from gpu import local_arch

import tvm_winograd
from tvm_winograd import ConvSpec
from tvm_winograd.check.verify import verify
from tvm_winograd.codegen.build import export
from tvm_winograd.codegen.cubin import device_blobs
from tvm_winograd.frontend.builtin import builtin_model
from tvm_winograd.frontend.resnet import ResNetConfig

pytestmark = pytest.mark.gpu
HERE = Path(__file__).parent


@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
@pytest.mark.parametrize("size", [(2, 16, 9, 13, 24), (32, 64, 56, 56, 64)], ids=str)
def test_sanitizer_is_clean(tool, size):
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is None:
        pytest.skip("compute-sanitizer is not installed")
    command = [sanitizer, "--tool", tool, "--error-exitcode", "99", sys.executable]
    run = subprocess.run(
        [*command, str(HERE / "gpu_one_conv.py"), *map(str, size)],
        capture_output=True,
        text=True,
        cwd=HERE,
        timeout=300,
    )
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    assert "ERROR SUMMARY: 0 errors" in run.stdout or "0 hazards displayed" in run.stdout


def test_the_blob_in_the_library_disassembles(tmp_path):
    tool = shutil.which("nvdisasm")
    if tool is None:
        pytest.skip("nvdisasm is not installed")
    arch = local_arch()
    compiled = tvm_winograd.conv2d(ConvSpec(1, 64, 14, 14, 64), "cuda", arch, "winograd")
    library = export(compiled.executable, tmp_path / "conv.so")
    ((kind, code),) = device_blobs(library)
    assert kind == "cubin"
    (tmp_path / "conv.cubin").write_bytes(code)
    run = subprocess.run(
        [tool, str(tmp_path / "conv.cubin")], capture_output=True, text=True, check=True
    )
    assert arch.replace("_", "") in run.stdout.lower().replace("_", "")
    assert run.stdout.count("FFMA") > 100


@pytest.mark.parametrize("block", ["basic", "bottleneck"])
def test_network(block, tmp_path):
    config = ResNetConfig(block, (1, 2), 10, 3, 33, (16, 24))
    model = builtin_model(config, "small", batch=3)
    artifact = tvm_winograd.compile(
        model, target="cuda", arch=local_arch(), output=tmp_path / "a", ptx=False
    )
    report = verify(artifact, model)
    assert report.ok, report
