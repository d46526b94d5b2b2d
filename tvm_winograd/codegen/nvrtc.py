"""CUDA C++ to machine code or PTX: our `tvm_callback_cuda_compile`, through NVRTC or nvcc.

TVM's own callback adds --use_fast_math, which changes results; this one gives the same flags
to both compilers and keeps what it compiled, so that resources can be reported.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..deploy import libraries
from ..errors import BuildError
from .kernel_cache import key_of, user_cache

COMPILERS = ("nvrtc", "nvcc")
_INSTALL = "pip install 'tvm-winograd[cuda]'"
_CALLBACK = "tvm_callback_cuda_compile"

# NVRTC has no <math.h>; the integer types and headers come from TVM's code itself.
_PREAMBLE = """\
#ifndef INFINITY
#define INFINITY (__builtin_huge_valf())
#endif
"""
# TVM's `#include <cuda/std/type_traits>` and the names that it takes from there
_TRAITS = re.compile(r"#include <cuda/std/type_traits>\s*namespace std \{[^}]*\}")
# unused variables in TVM's code, and a deprecated type in NVIDIA's own headers
_QUIET = "--diag-suppress=177,1444"
# cuda_fp16.h and cuda_bf16.h hide the operators that TVM's code uses behind these
_UNDEFINE = tuple(
    f"-U__CUDA_NO_{kind}__"
    for kind in (
        "HALF_OPERATORS",
        "HALF_CONVERSIONS",
        "BFLOAT16_OPERATORS",
        "BFLOAT16_CONVERSIONS",
        "BFLOAT162_OPERATORS",
        "BFLOAT162_CONVERSIONS",
    )
)


@dataclass(frozen=True)
class Compilation:
    """One run of a CUDA compiler."""

    source: str
    binary: bytes
    kind: str  # "cubin" or "ptx"
    arch: str  # "sm_90" or "compute_90"
    compiler: str  # "nvrtc 13.0" or "nvcc 13.0"
    log: str  # of ptxas -v too: registers, stack, spills
    seconds: float
    cached: bool = False  # it comes from an earlier run


class Progress:
    """How many kernels are compiled, of how many; counted by any number of threads."""

    def __init__(self) -> None:
        self._lock, self._start = threading.Lock(), 0.0
        self.done = self.total = 0

    def expect(self, kernels: int) -> None:
        with self._lock:
            self._start = self._start or time.perf_counter()
            self.total += kernels

    def count(self, kernels: int) -> None:
        with self._lock:
            self.done += kernels

    def __str__(self) -> str:
        """E.g. "31 of 81 kernels, about 12 s left"."""
        text = f"{self.done} of {self.total} kernels"
        if not self.done:
            return text
        each = (time.perf_counter() - self._start) / self.done
        return f"{text}, about {each * (self.total - self.done):.0f} s left"


@dataclass
class Request:
    """What the callback shall make while this is current, and what it made."""

    arch: str | None = None  # "sm_90"; None takes it from the current TVM target
    ptx: bool = False
    compiler: str = "nvrtc"
    cache: bool = True  # take what an earlier run compiled, and keep what this one does
    done: list[Compilation] = field(default_factory=list)
    error: BuildError | None = None
    kernels: Progress = field(default_factory=Progress)


_current: ContextVar[Request | None] = ContextVar("tvm_winograd_cuda_request", default=None)
_last: list[Compilation] = []


@contextmanager
def requesting(
    arch: str, *, ptx: bool, compiler: str, cache: bool = True, kernels: Progress | None = None
) -> Iterator[Request]:
    """Makes every CUDA compilation of this context one for `arch`, kept in the request.

    Args:
        kernels: where they are counted.
    """
    request = Request(arch, ptx, compiler, cache, kernels=kernels or Progress())
    token = _current.set(request)
    try:
        yield request
    finally:
        _current.reset(token)


def current_request() -> Request:
    """The request of this context; an empty one if there is none."""
    return _current.get() or Request()


def last_compilation() -> Compilation | None:
    """The newest compilation of this process: source, binary and log."""
    return _last[-1] if _last else None


def install_callback() -> None:
    """Puts our compile callback in the place of TVM's. TVM must have been imported."""
    import tvm.support.nvcc  # noqa: F401  registers TVM's own, which would override ours later
    import tvm_ffi

    tvm_ffi.register_global_func(_CALLBACK, _callback, override=True)


def check_compiler(compiler: str) -> None:
    """Raises:
    BuildError: an unknown compiler, or one that is not installed.
    """
    if compiler not in COMPILERS:
        raise BuildError(f"compiler={compiler!r}: supported are {', '.join(COMPILERS)}")
    if compiler == "nvcc":
        _find_nvcc()
    else:
        compiler_version("nvrtc")
        libraries.include_dirs()


def compiler_version(compiler: str) -> str:
    """E.g. "nvrtc 13.0"."""
    if compiler == "nvcc":
        text = subprocess.run(
            [_find_nvcc(), "--version"], capture_output=True, text=True, check=False
        ).stdout
        release = text.partition("release ")[2].partition(",")[0]
        return f"nvcc {release or 'unknown'}"
    nvrtc = _nvrtc()
    major, minor = _call(nvrtc, nvrtc.nvrtcVersion)
    return f"nvrtc {major}.{minor}"


def compile_cuda(
    source: str, arch: str, *, ptx: bool = False, compiler: str = "nvrtc", cache: bool = True
) -> Compilation:
    """Compiles CUDA C++ for `arch` ("sm_90") to a cubin, or to PTX of the same level.

    What was compiled last is not compiled again (a network's kernels with and without a CUDA graph
    are the same source), nor, if `cache`, what an earlier run compiled.

    Raises:
        BuildError: with the compiler's log, if the source does not compile.
    """
    name = arch.replace("sm_", "compute_") if ptx else arch
    version = compiler_version(compiler)
    last = last_compilation()
    if last and (last.source, last.arch, last.compiler) == (source, name, version):
        return last
    start = time.perf_counter()
    kept = user_cache() if cache else None
    key = key_of([source, name, version, *_headers(), *_options(name)])
    if (found := kept.get(key) if kept else None) is None:
        run = _run_nvcc if compiler == "nvcc" else _run_nvrtc
        binary, log = run(source, name, ptx)
        if kept:
            kept.put(key, binary, log)
    else:
        binary, log = found
    done = Compilation(
        source=source,
        binary=binary,
        kind="ptx" if ptx else "cubin",
        arch=name,
        compiler=version,
        log=log,
        seconds=time.perf_counter() - start,
        cached=found is not None,
    )
    _last[:] = [done]
    return done


def _callback(code: str) -> bytes:
    request = current_request()
    try:
        arch = request.arch or _target_arch()
        done = compile_cuda(
            code, arch, ptx=request.ptx, compiler=request.compiler, cache=request.cache
        )
    except BuildError as error:  # TVM wraps what passes through it: keep the original
        request.error = error
        raise
    request.done.append(done)
    return done.binary


def _target_arch() -> str:
    from tvm.target import Target

    target = Target.current(allow_none=True)
    arch = str(target.attrs.get("arch", "")) if target else ""
    if not arch.startswith("sm_"):
        raise BuildError(
            f"no architecture to compile CUDA for (current target: {target}); "
            "compile inside `with target:` of a target with arch sm_XX"
        )
    return arch


def _headers() -> list[str]:
    """What the headers that a kernel includes, and the compiler itself, are known by."""
    names = ("cuda-bindings", "nvidia-cuda-nvrtc", "nvidia-cuda-runtime", "nvidia-cuda-cccl")
    versions = [libraries.package_version(name) or "" for name in names]
    return [*versions, *map(str, libraries.include_dirs())]


def _options(arch: str) -> list[str]:
    """Flags for both compilers: IEEE arithmetic, FMA contraction as usual, ptxas report."""
    return [f"--gpu-architecture={arch}", "--std=c++17", "--ptxas-options=-v", _QUIET, *_UNDEFINE]


def _nvrtc() -> Any:
    try:
        from cuda.bindings import nvrtc
    except ImportError as error:
        raise BuildError(f"NVRTC is not installed ({error}); {_INSTALL}") from error
    return nvrtc


def _call(nvrtc: Any, function: Any, *args: Any) -> tuple[Any, ...]:
    """Calls an NVRTC function; its results without the status."""
    try:
        status, *results = function(*args)
    except RuntimeError as error:  # cuda.pathfinder found no libnvrtc
        raise BuildError(f"the NVRTC library cannot be loaded ({error}); {_INSTALL}") from error
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise BuildError(f"NVRTC: {function.__name__} failed with {status.name}")
    return tuple(results)


def _run_nvrtc(source: str, arch: str, ptx: bool) -> tuple[bytes, str]:
    nvrtc = _nvrtc()
    text = _PREAMBLE + _lean(source.replace("#include <cuda.h>\n", ""))
    (program,) = _call(nvrtc, nvrtc.nvrtcCreateProgram, text.encode(), b"kernels.cu", 0, None, None)
    options = [*_options(arch), "-default-device", "--device-int128"]
    # vector_types.h guards its deprecation notes with macros that NVRTC does not define
    options += [
        f"-D__NV_SILENCE_{side}DEPRECATION_{end}="
        for side in ("", "HOST_")
        for end in ("BEGIN", "END")
    ]
    options += [f"-I{path}" for path in libraries.include_dirs()]
    try:
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [o.encode() for o in options])
        log = _fetch(nvrtc, program, "ProgramLog").decode("utf-8", "replace").rstrip("\0\n")
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise BuildError(f"NVRTC could not compile for {arch} ({status.name}):\n{log}")
        return _fetch(nvrtc, program, "PTX" if ptx else "CUBIN"), log
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _lean(source: str) -> str:
    """`source` without the type traits that TVM's header brings along, where nothing uses them.

    They take 0.7 s of every compilation.
    """
    rest = _TRAITS.sub("", source, count=1)
    return source if "std::" in rest.replace("cuda::std::", "") else rest


def _fetch(nvrtc: Any, program: Any, what: str) -> bytes:
    (size,) = _call(nvrtc, getattr(nvrtc, f"nvrtcGet{what}Size"), program)
    buffer = b"\0" * size  # the binding writes into it
    _call(nvrtc, getattr(nvrtc, f"nvrtcGet{what}"), program, buffer)
    return buffer


def _find_nvcc() -> str:
    found = shutil.which("nvcc")
    for root in libraries.toolkit_roots():
        found = found or shutil.which("nvcc", path=str(root / "bin"))
    if not found:
        raise BuildError(
            "compiler='nvcc', but no nvcc is on PATH or in CUDA_HOME; install a CUDA toolkit, "
            f"or use compiler='nvrtc' ({_INSTALL})"
        )
    return found


def _run_nvcc(source: str, arch: str, ptx: bool) -> tuple[bytes, str]:
    kind = "ptx" if ptx else "cubin"
    with tempfile.TemporaryDirectory() as folder:
        code, output = Path(folder, "kernels.cu"), Path(folder, f"kernels.{kind}")
        code.write_text(source, encoding="utf-8")
        command = [_find_nvcc(), f"--{kind}", "-O3", *_options(arch)]
        command += ["--expt-relaxed-constexpr", "-o", str(output), str(code)]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        log = (run.stdout + run.stderr).strip()
        if run.returncode != 0:
            raise BuildError(f"nvcc could not compile for {arch} (exit {run.returncode}):\n{log}")
        return output.read_bytes(), log
