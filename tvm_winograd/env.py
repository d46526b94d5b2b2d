"""Every environment variable this package reads, and what it finds on this machine."""

from __future__ import annotations

import os
import platform
import sys
from typing import Any

from .deploy.devices import gpus
from .deploy.libraries import package_version

# name -> meaning; all of them, read nowhere else under another name
VARIABLES = {
    "CUDA_PATH": "a CUDA toolkit to take nvcc, headers and libraries from",
    "CUDA_HOME": "the same, if CUDA_PATH is not set",
    "CXX": "the C++ compiler that links compiled models",
    "CC": "the same, if CXX is not set",
    "TVM_WINOGRAD_CACHE": "the folder of compiled kernels (~/.cache/tvm_winograd); off: none",
    "TVM_NUM_THREADS": "threads of a model on the CPU (read by TVM)",
}
_PACKAGES = (
    "tvm-winograd", "apache-tvm", "apache-tvm-ffi", "numpy", "cuda-bindings", "nvidia-cuda-nvrtc",
    "nvidia-cuda-runtime", "nvidia-cuda-cccl", "onnx", "torch", "xgboost-cpu",
)  # fmt: skip


def collect() -> dict[str, Any]:
    """Versions, compilers, devices and variables; JSON-able. Never raises for a missing part."""
    return {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "packages": {name: package_version(name) for name in _PACKAGES},
        "host_compiler": _host_compiler(),
        "cuda_compiler": _cuda_compiler(),
        "cpu": _cpu(),
        "gpus": gpus(),
        "architectures": _architectures(),
        "variables": {name: os.environ.get(name) for name in VARIABLES},
    }


def _host_compiler() -> str:
    from .codegen.build import host_compiler
    from .errors import BuildError

    try:
        return host_compiler()
    except BuildError as error:
        return f"none: {error}"


def _cuda_compiler() -> str:
    from .codegen.nvrtc import compiler_version
    from .errors import BuildError

    try:
        return compiler_version("nvrtc")
    except BuildError as error:
        return f"none: {error}"


def _cpu() -> dict[str, Any]:
    from .gpu import host_cpu

    cpu = host_cpu()
    return {"name": cpu.cpu, "vector_bits": cpu.vector_bits, "cores": cpu.cores}


def _architectures() -> list[str]:
    from .gpu import GPUS

    return list(GPUS)
