"""Compiler flags for a C++ host of artifacts, from the installed wheels.

g++ -O2 examples/cpp/host.cc $(tvm-winograd env --cpp-flags) -o host
"""

from __future__ import annotations

import shlex
from pathlib import Path

from ..deploy import libraries
from ..errors import BuildError


def cpp_flags() -> str:
    """Include folders, libraries and run paths, quoted for a shell.

    Raises:
        BuildError: TVM or tvm_ffi is not installed as a wheel.
    """
    runtime = libraries.tvm_lib("libtvm_runtime.so").parent
    ffi = libraries.package_dir("tvm_ffi")
    if ffi is None or not (ffi / "include" / "tvm" / "ffi").is_dir():
        raise BuildError(
            "tvm_ffi's C++ headers were not found: "
            "pip install 'apache-tvm-ffi>=0.1.14.post0,<0.1.15'"
        )
    includes = [ffi / "include", *_dlpack(ffi)]
    folders = [runtime, ffi / "lib", *_cudart_folders()]
    flags = ["-std=c++17", *(f"-I{p}" for p in includes)]
    # RPATH, not RUNPATH: libtvm_runtime_cuda.so is opened later and needs libcudart from here
    flags += [f"-L{runtime}", f"-L{ffi / 'lib'}", "-Wl,--disable-new-dtags"]
    flags += [f"-Wl,-rpath,{p}" for p in folders]
    flags += ["-Wl,--no-as-needed", "-ltvm_runtime", "-ltvm_ffi", "-ldl"]
    return shlex.join(flags)


def _dlpack(ffi: Path) -> list[Path]:
    if (ffi / "include" / "dlpack").is_dir():
        return []
    return [header.parent.parent for header in ffi.glob("3rdparty/**/dlpack/dlpack.h")]


def _cudart_folders() -> list[Path]:
    roots = [*libraries.wheel_roots(), *libraries.toolkit_roots()]
    places = [root / lib for root in roots for lib in ("lib", "lib64")]
    return [p for p in places if (p / libraries.CUDART).exists()][:1]


if __name__ == "__main__":
    print(cpp_flags())
