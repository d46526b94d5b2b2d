"""Device code without a GPU, driver or toolkit, and what is read back from it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers_small_model import PLAIN_CPU, small_module

from tvm_winograd.codegen import build as build_module
from tvm_winograd.codegen import nvrtc
from tvm_winograd.codegen.build import (
    build,
    check_device_code,
    ensure_cuda_codegen,
    export,
    host_compiler,
)
from tvm_winograd.codegen.cubin import device_blobs, resources
from tvm_winograd.deploy import libraries
from tvm_winograd.errors import BuildError, as_build_error
from tvm_winograd.gpu import GPUS, gpu_for

TESTS = Path(__file__).parent

SEVEN_ARCHS = """
import sys, pathlib
{first}
from helpers_small_model import small_module
from tvm_winograd.codegen.build import build, export
from tvm_winograd.codegen.cubin import device_blobs
from tvm_winograd.gpu import gpu_for
for arch in sys.argv[2:]:
    lib = export(build(small_module(gpu_for(arch)), gpu_for(arch)), pathlib.Path(sys.argv[1], arch))
    (kind, code), = device_blobs(lib)
    print(arch, kind, int.from_bytes(code[48:52], "little"))
print("toolkit" if "/usr/local/cuda" in open("/proc/self/maps").read() else "wheels")
"""


def python(code: str, *args: object, **env: str) -> subprocess.CompletedProcess:
    """A process that sees no CUDA toolkit: only /usr/bin, and none of the usual variables."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("CUDA", "TVM", "LD_LIB"))}
    clean |= {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(TESTS), **env}
    command = [sys.executable, "-c", code, *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, env=clean, check=False)


@pytest.fixture(scope="module")
def sm_86():
    gpu = gpu_for("sm_86")
    return build(small_module(gpu), gpu)


@pytest.mark.parametrize("archs", [list(GPUS), ["sm_90"]], ids=["all", "tvm imported first"])
def test_cubins_from_wheels_alone(tmp_path, archs):
    if shutil.which("nvcc", path="/usr/bin:/bin"):
        pytest.skip("nvcc lies in /usr/bin here and cannot be hidden")
    first = "import tvm" if len(archs) == 1 else ""
    ran = python(SEVEN_ARCHS.format(first=first), tmp_path, *archs)
    assert ran.returncode == 0, ran.stderr
    *lines, where = ran.stdout.splitlines()
    assert where == "wheels"
    for arch, line in zip(archs, lines, strict=True):
        name, kind, flags = line.split()
        assert (name, kind) == (arch, "cubin")
        # e_flags hold the architecture: bits 8-15 in CUDA 13's files
        assert int(flags) >> 8 & 0xFF == gpu_for(arch).cc


def test_source_text_is_refused(tmp_path):
    code = """
import sys
import tvm
from helpers_small_model import small_module
from tvm_winograd.gpu import gpu_for, make_target
gpu = gpu_for("sm_90")
with make_target(gpu):
    ex = tvm.compile(small_module(gpu), target=make_target(gpu))
ex.export_library(sys.argv[1])
"""
    library = tmp_path / "text.so"
    ran = python(code, library, TVM_COMPILE_FORCE_FALLBACK="1")
    assert ran.returncode == 0, ran.stderr
    assert [kind for kind, _ in device_blobs(library)] == ["cuda"]
    with pytest.raises(BuildError, match="CUDA source text"):
        check_device_code(library, cuda=True)


def test_ptx_only_when_asked(tmp_path):
    gpu = gpu_for("sm_75")
    executable = build(small_module(gpu), gpu, ptx=True)
    with pytest.raises(BuildError, match="ptx where cubin or fatbin"):
        export(executable, tmp_path / "m.so")
    assert not list(tmp_path.iterdir())
    ((kind, code),) = device_blobs(export(executable, tmp_path / "m.so", ptx=True))
    assert kind == "ptx" and b".target sm_75" in code


def test_failed_export_keeps_what_was_there(tmp_path, sm_86):
    path = tmp_path / "m.so"
    path.write_bytes(b"before")
    with pytest.raises(BuildError):
        export(sm_86, path, ptx=True)
    assert path.read_bytes() == b"before" and len(list(tmp_path.iterdir())) == 1


def test_cpu_library_has_no_device_code(tmp_path):
    library = export(build(small_module(PLAIN_CPU), PLAIN_CPU), tmp_path / "m.so")
    assert device_blobs(library) == []
    with pytest.raises(BuildError, match="holds no device code"):
        check_device_code(library, cuda=True)


def test_nvcc_gives_the_same_kernels(tmp_path):
    try:
        nvrtc.check_compiler("nvcc")
    except BuildError as error:
        pytest.skip(str(error))
    gpu = gpu_for("sm_80")
    made = {}
    for compiler in nvrtc.COMPILERS:
        executable = build(small_module(gpu), gpu, compiler=compiler)
        ((kind, code),) = device_blobs(export(executable, tmp_path / "m.so"))
        assert kind == "cubin" and nvrtc.last_compilation().compiler.startswith(compiler)
        made[compiler] = sorted(
            (k.name, k.static_shared_bytes, k.max_threads) for k in resources(code)
        )
    assert made["nvrtc"] == made["nvcc"]


def test_last_compilation_holds_source_and_log():
    source = 'extern "C" __global__ void f(float* x) { x[0] = 1; }'
    last = nvrtc.compile_cuda(source, "sm_86")
    assert nvrtc.last_compilation() is last
    assert last.source == source and "spill stores" in last.log and last.arch == "sm_86"


def test_arithmetic_is_ieee():
    source = 'extern "C" __global__ void f(float* x) { x[0] = x[1] / x[2] + sqrtf(x[3]); }'
    ptx = nvrtc.compile_cuda(source, "sm_80", ptx=True).binary.decode()
    assert "div.rn.f32" in ptx and "sqrt.rn.f32" in ptx and ".ftz" not in ptx


def test_target_of_the_context_is_used_without_a_request():
    """The tuner's builder calls tvm.compile itself."""
    import tvm

    from tvm_winograd.gpu import make_target

    ensure_cuda_codegen()
    target = make_target(gpu_for("sm_89"))
    with target:
        tvm.compile(small_module(gpu_for("sm_89")), target=target)
    assert nvrtc.last_compilation().arch == "sm_89"


@pytest.mark.parametrize("compiler", nvrtc.COMPILERS)
def test_compile_errors_carry_the_log(compiler):
    try:
        nvrtc.check_compiler(compiler)
    except BuildError as error:
        pytest.skip(str(error))
    with pytest.raises(BuildError, match="undefined_thing"):
        nvrtc.compile_cuda("__global__ void f() { undefined_thing(); }", "sm_90", compiler=compiler)


def test_build_raises_our_error_through_tvm(monkeypatch):
    def fail(*args, **options):
        raise BuildError("the compiler's log")

    ensure_cuda_codegen()
    monkeypatch.setattr(nvrtc, "compile_cuda", fail)
    with pytest.raises(BuildError, match=r"^the compiler's log$"):
        build(small_module(gpu_for("sm_90")), gpu_for("sm_90"))


def test_reason_of_a_failed_pass_ends_the_message():
    """Notes of one line show a message's end; behind the reason TVM prints the module."""
    with pytest.raises(BuildError, match=r"not compile: it has 3 axes$"):
        with as_build_error("TVM could not compile"):
            raise ValueError("it has 3 axes\n\nError in pass: p\n@T.prim_func\ndef f()")


def test_missing_wheels_are_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(BuildError, match=r"pip install 'tvm-winograd\[cuda\]'"):
        ensure_cuda_codegen()
    monkeypatch.undo()
    monkeypatch.setattr(libraries, "wheel_roots", list)
    monkeypatch.setattr(libraries, "toolkit_roots", list)
    with pytest.raises(BuildError, match=r"CUDA headers .* pip install 'tvm-winograd\[cuda\]'"):
        ensure_cuda_codegen()


def test_missing_c_compiler_is_named(monkeypatch, tmp_path, sm_86):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.delenv("CXX", raising=False)
    for attempt in (host_compiler, ensure_cuda_codegen, lambda: export(sm_86, tmp_path / "m.so")):
        with pytest.raises(BuildError, match="no C compiler"):
            attempt()


def test_bad_requests(sm_86):
    gpu, relax = gpu_for("sm_90"), small_module(PLAIN_CPU)
    for options, message in [
        ({"pipeline": "other"}, "supported are relax, tir"),
        ({"pipeline": "tir"}, "takes PrimFuncs only"),
        ({"ptx": True}, "needs a Gpu"),
    ]:
        with pytest.raises(BuildError, match=message):
            build(relax, PLAIN_CPU, **options)
    with pytest.raises(BuildError, match="supported are nvrtc, nvcc"):
        build(relax, gpu, compiler="clang")


def test_prim_funcs_alone(tmp_path):
    import numpy as np
    import tvm
    from tvm import te

    a = te.placeholder((64,), name="a")
    func = te.create_prim_func([a, te.compute((64,), lambda i: a[i] * 2, name="b")])
    executable = build(func, PLAIN_CPU, pipeline="tir")
    x, y = tvm.runtime.tensor(np.arange(64, dtype="float32")), tvm.runtime.empty((64,))
    executable(x, y)
    assert (y.numpy() == 2 * np.arange(64)).all()


def test_stub_covers_every_driver_function_tvm_needs():
    nm = shutil.which("nm")
    if nm is None:
        pytest.skip("no nm")
    library = libraries.tvm_lib("libtvm_runtime_cuda.so")
    names = subprocess.run([nm, "-D", "--undefined-only", library], capture_output=True, text=True)
    needed = set(re.findall(r"\bU (cu[A-Z]\w+)", names.stdout))
    assert needed and needed <= set(build_module._DRIVER_FUNCTIONS)
