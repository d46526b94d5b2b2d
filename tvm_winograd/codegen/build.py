"""Scheduled IRModules to executables: device code without a GPU, a driver or a toolkit.

TVM embeds CUDA *source text* in its libraries, silently, when libtvm_runtime_cuda.so cannot be
loaded; `ensure_cuda_codegen` makes it loadable on any machine and `export` refuses text.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from ..deploy import libraries
from ..errors import BuildError, as_build_error
from ..gpu import Gpu, Hardware, make_target
from ..ir.tvm_027 import HEXAGON_PASS, note_library
from . import cp_async, held_loads, in_parts
from .cubin import device_blobs
from .nvrtc import Progress, Request, check_compiler, install_callback, requesting
from .plan import Plan, plan_network

PIPELINES = ("relax", "tir")
_FACTORY = "ffi.Module.create.cuda"  # registered by libtvm_runtime_cuda.so

# Every driver function libtvm_runtime_cuda.so links against. All answer CUDA_ERROR_NO_DEVICE:
# with the stub loaded, code can be made but never run.
_DRIVER_FUNCTIONS = (
    "cuInit",
    "cuDeviceGetName",
    "cuFuncSetAttribute",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuLaunchKernelEx",
    "cuModuleGetFunction",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuTensorMapEncodeTiled",
)
_NO_DEVICE = 100


def host_compiler() -> str:
    """The C/C++ compiler that links our libraries: CXX, CC, or a usual name.

    Raises:
        BuildError: there is none, or not the one that CXX or CC names.
    """
    for variable in ("CXX", "CC"):
        if name := os.environ.get(variable):
            if found := shutil.which(name):
                return found
            raise BuildError(
                f"{variable}={name!r} is no program; one name or path without arguments is needed, "
                "or unset it"
            )
    for name in ("g++", "gcc", "clang++", "clang", "c++", "cc"):
        if found := shutil.which(name):
            return found
    raise BuildError(
        "no C compiler was found (tried CXX, CC, g++, gcc, clang, cc); TVM needs one to link "
        "every compiled model: install gcc, e.g. `apt install g++`"
    )


def ensure_cuda_codegen(compiler: str = "nvrtc") -> None:
    """Makes TVM's CUDA code generator give machine code here; does nothing the second time.

    Works before or after `import tvm`. Without an NVIDIA driver a stub takes its place in this
    process, so nothing can run on a GPU in it, which is no loss.

    Raises:
        BuildError: a compiler or library is missing, with what to install.
    """
    check_compiler(compiler)
    host_compiler()
    import tvm.base  # noqa: F401  (registers what the factory needs)
    import tvm_ffi

    if tvm_ffi.get_global_func(_FACTORY, allow_missing=True) is None:
        _load_cuda_runtime()
        runtime = libraries.load(libraries.tvm_lib("libtvm_runtime_cuda.so"))
        note_library("tvm_runtime_cuda", runtime)
    if tvm_ffi.get_global_func(_FACTORY, allow_missing=True) is None:
        raise BuildError(
            f"libtvm_runtime_cuda.so did not register {_FACTORY}: TVM "
            f"{libraries.tvm_version()} is not the supported 0.27.0.post1"
        )
    install_callback()
    in_parts.install()
    cp_async.install()
    held_loads.install()


def build(
    mod: Any,
    hardware: Hardware,
    *,
    compiler: str = "nvrtc",
    ptx: bool = False,
    cache: bool = True,
    pipeline: str = "relax",
    pass_config: Mapping[str, Any] | None = None,
    kernels: Progress | None = None,
) -> Any:
    """Compiles a lowered and scheduled module for `hardware`.

    Args:
        mod: an IRModule of PrimFuncs, maybe of Relax functions that call them; a PrimFunc; or a
            Plan, which says whether kernels are captured in a CUDA graph.
        hardware: `gpu.Gpu` or `gpu.Cpu`.
        compiler: of CUDA code, "nvrtc" or "nvcc".
        ptx: PTX of the architecture's level instead of machine code.
        cache: take CUDA code that an earlier run compiled, and keep what this one does.
        pipeline: "relax" lowers Relax functions to the virtual machine; "tir" refuses them.
        pass_config: for the PassContext, e.g. {"tirx.use_async_copy": True}.
        kernels: where those compiled for CUDA are counted.

    Returns:
        A tvm.runtime.Executable.

    Raises:
        BuildError: the module or the toolchain does not allow it.
    """
    import tvm

    if pipeline not in PIPELINES:
        raise BuildError(f"pipeline={pipeline!r}: supported are {', '.join(PIPELINES)}")
    if ptx and not isinstance(hardware, Gpu):
        raise BuildError("ptx=True needs a Gpu, got a Cpu")
    if isinstance(mod, tvm.tirx.PrimFunc):
        mod = tvm.IRModule({"main": mod.with_attr("global_symbol", "main")})
    if isinstance(mod, Plan) or _has_relax(mod):
        if pipeline == "tir":
            raise BuildError("pipeline='tir' takes PrimFuncs only; use pipeline='relax'")
        if not isinstance(mod, Plan):
            with as_build_error(f"TVM could not lower for {hardware.arch}"):
                mod = plan_network(mod, make_target(hardware))
    config = dict(pass_config or {})
    if isinstance(hardware, Gpu):
        arch = hardware.arch if ptx else hardware.code
        how: dict[str, Any] = {"compiler": compiler, "cache": cache, "kernels": kernels}
        request = requesting(arch, ptx=ptx, **how)
        return _compile_cuda(mod, hardware, request, compiler, config)
    return _compile(mod, hardware, config)


def export(executable: Any, path: str | Path, *, ptx: bool = False) -> Path:
    """Writes `executable` as a shared library, whole or not at all.

    Raises:
        BuildError: its device code is source text, PTX that was not asked for, or missing.
    """
    linker = host_compiler()
    path = Path(path)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".export-") as folder:
        made = Path(folder, "module.so")
        _link(executable, made, linker)
        check_device_code(made, cuda=_has_cuda(executable.mod), ptx=ptx)
        os.replace(made, path)
    return path


def _link(executable: Any, made: Path, linker: str) -> None:
    with as_build_error(f"{linker} could not link the module"):
        executable.export_library(str(made), cc=linker)
    if not made.is_file():
        raise BuildError(f"{linker} made no library and reported no error; is it a C compiler?")


def check_device_code(library: str | Path | bytes, *, cuda: bool, ptx: bool = False) -> None:
    """Raises:
    BuildError: unless every device blob in a TVM library is machine code (PTX if `ptx`).
    """
    wanted = {"ptx"} if ptx else {"cubin", "fatbin"}
    kinds = [kind for kind, _ in device_blobs(library)]
    for kind in kinds:
        if kind not in wanted:
            raise BuildError(
                f"the library holds {'CUDA source text' if kind == 'cuda' else kind} where "
                f"{' or '.join(sorted(wanted))} was wanted: TVM's CUDA runtime library was not "
                "loaded when it was built; call ensure_cuda_codegen() first"
            )
    if cuda and not kinds:
        raise BuildError("the library was built for CUDA but holds no device code")


def _compile_cuda(
    mod: Any,
    gpu: Gpu,
    requested: AbstractContextManager[Request],
    compiler: str,
    config: dict[str, Any],
) -> Any:
    ensure_cuda_codegen(compiler)
    with requested as request:
        try:
            return _compile(mod, gpu, config)
        except BuildError:
            if request.error is not None:  # TVM lost its type on the way
                raise request.error from None
            raise


def _compile(mod: Any, hardware: Hardware, config: dict[str, Any]) -> Any:
    import tvm

    target: Any = make_target(hardware)
    lowering = held_loads.PIPELINE if isinstance(hardware, Gpu) else "default"
    context = tvm.transform.PassContext(opt_level=3, config=config, disabled_pass=[HEXAGON_PASS])
    with as_build_error(f"TVM could not compile for {hardware.arch}"), target, context:
        if isinstance(mod, Plan):
            done = tvm.transform.Sequential([])
            return tvm.compile(mod.mod, target, relax_pipeline=done, tir_pipeline=lowering)
        return tvm.compile(mod, target=target, tir_pipeline=lowering)


def _has_relax(mod: Any) -> bool:
    import tvm

    return any(isinstance(f, tvm.relax.Function) for f in mod.functions.values())


def _has_cuda(module: Any) -> bool:
    return module.kind == "cuda" or any(_has_cuda(m) for m in module.imports)


def _load_cuda_runtime() -> None:
    """libcudart, and a libcuda.so.1, real or not: libtvm_runtime_cuda.so needs both."""
    if libraries.load_cudart() is None:
        raise BuildError(
            f"{libraries.CUDART} was not found in the nvidia wheels, on the library path or in a "
            "toolkit; pip install 'tvm-winograd[cuda]'"
        )
    if libraries.load_driver() is None:
        _load_stub_driver()


def _load_stub_driver() -> None:
    if not sys.platform.startswith("linux"):
        raise BuildError(f"CUDA code can be made on Linux only, this is {sys.platform}")
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "stub.c"), Path(folder, libraries.DRIVER)
        lines = [f"int {name}(void) {{ return {_NO_DEVICE}; }}" for name in _DRIVER_FUNCTIONS]
        source.write_text("\n".join(lines) + "\n", encoding="utf-8")
        command = [host_compiler(), "-x", "c", "-shared", "-fPIC", f"-Wl,-soname,{library.name}"]
        run = subprocess.run(
            [*command, "-o", str(library), str(source)], capture_output=True, text=True, check=False
        )
        if run.returncode != 0:
            raise BuildError(f"the driver stub did not compile with {command[0]}:\n{run.stderr}")
        libraries.load(library)
