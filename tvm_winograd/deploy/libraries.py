"""Where TVM's and CUDA's libraries and headers lie: installed wheels first, then a toolkit.

Standard library only, and `import tvm` never happens here: the deploy side uses this too.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from ..errors import BuildError

CUDART = "libcudart.so.13"  # what TVM 0.27's libtvm_runtime_cuda.so was linked against
DRIVER = "libcuda.so.1"

_kept: dict[str, ctypes.CDLL] = {}  # a CDLL that is collected is not unloaded, but be explicit


def package_dir(name: str) -> Path | None:
    """The folder of an installed package, without importing it."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))


def tvm_lib(name: str) -> Path:
    """A shared library of the TVM wheel, e.g. `libtvm_runtime.so`.

    Raises:
        BuildError: TVM is not installed, or came without that library.
    """
    root = package_dir("tvm")
    if root is None:
        raise BuildError("TVM is not installed: pip install apache-tvm==0.27.0.post1")
    path = root / "lib" / name
    if not path.is_file():
        raise BuildError(f"{path} is missing: this TVM was built without it, reinstall apache-tvm")
    return path


def package_version(name: str) -> str | None:
    """The version of an installed distribution; None if there is none."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def tvm_version() -> str:
    """Version of the installed TVM ("0.27.0.post1"), "unknown" if it does not say."""
    if version := package_version("apache-tvm"):
        return version
    root = package_dir("tvm")
    source = root / "_version.py" if root else None
    if source is None or not source.is_file():
        return "unknown"
    found = re.search(r"version = '([^']+)'", source.read_text(encoding="utf-8"))
    return found.group(1) if found else "unknown"


def wheel_roots() -> list[Path]:
    """`nvidia/cu13` folders of installed NVIDIA wheels."""
    spec = importlib.util.find_spec("nvidia")
    places = list(spec.submodule_search_locations or ()) if spec else []
    return [root for p in places if (root := Path(p) / "cu13").is_dir()]


def toolkit_roots() -> list[Path]:
    """CUDA toolkits of this machine, in order of preference."""
    named = [os.environ.get(v) for v in ("CUDA_HOME", "CUDA_PATH")]
    nvcc = shutil.which("nvcc")
    beside_nvcc = Path(os.path.realpath(nvcc)).parent.parent if nvcc else None
    roots = [Path(p) for p in named if p]
    roots += [p for p in (beside_nvcc, Path("/usr/local/cuda")) if p]
    return [p for p in dict.fromkeys(roots) if p.is_dir()]


def include_dirs() -> list[Path]:
    """CUDA headers: the runtime's and libcu++'s (cccl), of the first place that has both.

    Raises:
        BuildError: no place has both.
    """
    for root in [*wheel_roots(), *toolkit_roots()]:
        for include in (root / "include", *root.glob("targets/*/include")):
            cccl = include / "cccl" if (include / "cccl").is_dir() else include
            if (include / "cuda_runtime.h").is_file() and (cccl / "cuda" / "std").is_dir():
                return [include] if cccl == include else [include, cccl]
    raise BuildError(
        "the CUDA headers (cuda_runtime.h and cuda/std) were not found in the nvidia wheels, "
        "CUDA_HOME, CUDA_PATH or /usr/local/cuda; pip install 'tvm-winograd[cuda]'"
    )


def load(path: str | Path, *, public: bool = True) -> ctypes.CDLL:
    """Loads a shared library once and keeps it; OSError if it cannot be loaded."""
    key = str(path)
    if key not in _kept:
        _kept[key] = ctypes.CDLL(key, ctypes.RTLD_GLOBAL if public else ctypes.RTLD_LOCAL)
    return _kept[key]


def load_cudart() -> ctypes.CDLL | None:
    """The CUDA runtime library: already loaded or on the path, wheel, toolkit; None if nowhere."""
    for candidate in _cudart_candidates():
        try:
            return load(candidate)
        except OSError:
            continue
    return None


def _cudart_candidates() -> Iterator[str | Path]:
    # wheels first: their version is the pinned one
    yield from (root / "lib" / CUDART for root in wheel_roots())
    yield CUDART
    for root in toolkit_roots():
        yield from (root / "lib64" / CUDART, root / "lib" / CUDART)


def load_driver() -> ctypes.CDLL | None:
    """NVIDIA's driver library (or the stub `build` put in its place); None without one."""
    try:
        return load(DRIVER)
    except OSError:
        return None
