"""What a cubin tells about its kernels, against what ptxas says."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess

import pytest

from tvm_winograd.codegen import nvrtc
from tvm_winograd.codegen.cubin import kind_of, resources
from tvm_winograd.errors import BuildError

# one kernel with static shared memory, one with an array ptxas must put in local memory, and one
# with more live values than 64 registers hold, so that it spills
KERNELS = r"""
extern "C" __global__ void __launch_bounds__(128) shared_kernel(float* x) {
  __shared__ float s[512];
  s[threadIdx.x] = x[threadIdx.x]; __syncthreads(); x[threadIdx.x] = s[127 - threadIdx.x];
}
extern "C" __global__ void __launch_bounds__(64) local_kernel(float* x, int n) {
  float a[96];
  for (int i = 0; i < 96; ++i) a[i] = x[i * 64 + threadIdx.x];
  for (int i = 0; i < n; ++i) a[(n * i) % 96] += a[(i * 7 + n) % 96];
  for (int i = 0; i < 96; ++i) x[i * 64 + threadIdx.x] = a[i];
}
extern "C" __global__ void __launch_bounds__(1024, 2) spill_kernel(float* x) {
  float a[64];
  #pragma unroll
  for (int i = 0; i < 64; ++i) a[i] = x[i * 1024 + threadIdx.x];
  __syncthreads();
  #pragma unroll
  for (int i = 0; i < 64; ++i) { float t = 0;
    #pragma unroll
    for (int j = 0; j < 64; ++j) t += a[j] * (float)(i ^ j);
    x[i * 1024 + threadIdx.x] = t; }
}
"""


@pytest.mark.parametrize("arch", ["sm_75", "sm_90", "sm_120"])
def test_resources_agree_with_ptxas(tmp_path, arch):
    done = nvrtc.compile_cuda(KERNELS, arch)
    found = {k.name: k for k in resources(done.binary, done.log)}
    assert set(found) == {"shared_kernel", "local_kernel", "spill_kernel"}
    assert found["shared_kernel"].static_shared_bytes == 2048
    assert found["local_kernel"].local_bytes >= 96 * 4
    assert found["spill_kernel"].registers in (32, 64) and found["spill_kernel"].spill_stores > 0
    assert [found[n].max_threads for n in sorted(found)] == [64, 128, 1024]
    assert_matches_log(found, done.log)
    ptxas = shutil.which("ptxas")
    if ptxas is None:
        pytest.skip("no ptxas to compare with; NVRTC's log agreed")
    (tmp_path / "k.ptx").write_bytes(
        nvrtc.compile_cuda(KERNELS, arch, ptx=True).binary.rstrip(b"\0")
    )
    command = [ptxas, "-v", f"-arch={arch}", "k.ptx", "-o", "k.cubin"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    cubin = (tmp_path / "k.cubin").read_bytes()
    assert_matches_log({k.name: k for k in resources(cubin, ran.stderr)}, ran.stderr)


def assert_matches_log(found: dict, log: str) -> None:
    parts = re.split(r"Function properties for (\w+)", log)[1:]
    assert len(parts) == 2 * len(found)
    for name, text in zip(parts[::2], parts[1::2], strict=True):
        kernel = found[name]
        stack, stores, loads = (int(v) for v in re.findall(r"(\d+) bytes (?:stack|spill)", text))
        shared = re.search(r"(\d+) bytes smem", text)
        assert kernel.registers == int(re.search(r"Used (\d+) registers", text).group(1))
        assert kernel.local_bytes == stack
        assert (kernel.spill_stores, kernel.spill_loads) == (stores, loads)
        assert kernel.static_shared_bytes == (int(shared.group(1)) if shared else 0)


def test_resources_of_something_else():
    with pytest.raises(BuildError, match="not a cubin but ptx"):
        resources(b"//\n.version 9.0\n.target sm_90\n")


@pytest.mark.parametrize(
    "code, kind",
    [
        (struct.pack("<I", 0xBA55ED50) + b"\1\0", "fatbin"),
        (b'extern "C" __global__ void f() {}', "cuda"),
        (b"// a comment\n#include <cuda.h>", "cuda"),
        (b"//\n// Generated\n\n.version 9.0\n", "ptx"),
        (b"\x7fELF" + bytes(60), "unknown"),
        (b"\x7fELF", "unknown"),
        (b"?", "unknown"),
    ],
)
def test_kind_is_told_from_the_bytes(code, kind):
    assert kind_of(code) == kind
