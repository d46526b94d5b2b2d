"""What `runtime.load` asks of the machine: libraries, versions, the GPU, and which module fits.

Needs TVM's runtime only; nothing here imports `tvm`.
"""

from __future__ import annotations

import ctypes
import json
import math
import re
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ArtifactError, BuildError
from . import libraries
from .arguments import numpy_dtype
from .memory import Memory

CPU, CUDA = 1, 2  # DLPack device types
_RUNTIME_MARK = "vm.builtin.tensor_cache.load"  # registered by libtvm_runtime.so
_CUDA_MARK = "device_api.cuda"  # by libtvm_runtime_cuda.so
# numbers of cudaDeviceGetAttribute
_CC_MAJOR, _CC_MINOR, _SHARED_OPTIN = 75, 76, 97
_ELSEWHERE = "run on a machine with an NVIDIA GPU, or compile with --target llvm"


_seen: dict[Path, list[tuple[int, int]]] = {}  # path of a library -> device, inode of its files
_seen_lock = threading.Lock()


def parse_device(device: str | None, target: str) -> tuple[int, int]:
    """DLPack device type and index of "cpu", "cuda" or "cuda:1", checked against the target.

    Raises:
        ArtifactError: no such device, or the artifact is for the other kind.
    """
    text = device if device is not None else {"llvm": "cpu", "cuda": "cuda"}[target]
    found = re.fullmatch(r"(cpu|cuda)(?::(\d{1,4}))?", str(text))
    if found is None:
        raise ArtifactError(f"device={text!r}: supported are cpu, cuda, cuda:0, cuda:1, ...")
    kind = found.group(1)
    if (kind == "cuda") != (target == "cuda"):
        raise ArtifactError(
            f"device={text!r}, but this artifact was compiled for {target}; "
            f"compile with --target {'cuda' if kind == 'cuda' else 'llvm'}"
        )
    return (CUDA if kind == "cuda" else CPU), int(found.group(2) or 0)


def check_versions(manifest: Mapping[str, Any]) -> None:
    """Raises:
    ArtifactError: the artifact was made with another TVM release; its bytecode may differ.
    """
    made, here = manifest["versions"]["tvm"], libraries.tvm_version()
    if _release(made) != _release(here):
        raise ArtifactError(
            f"this artifact was made with TVM {made}, installed is {here}: "
            f"pip install apache-tvm=={made}, or compile the model again"
        )


def hint(error: Exception) -> str:
    """What to do about a failure to load: a full device is not a damaged file."""
    if re.search(r"out of memory|OUT_OF_MEMORY|cudaErrorMemoryAllocation", str(error)):
        return "end what else runs on the GPU, or name another with device='cuda:1'"
    if re.search(r"CUDA|cuda", str(error)):
        return "nvidia-smi says whether the GPU works"
    return "compile the model again"


def load_runtime() -> None:
    """Loads libtvm_runtime.so, unless `import tvm` did.

    Raises:
        ArtifactError: it is not there.
    """
    if not _registered(_RUNTIME_MARK):
        _load_tvm("libtvm_runtime.so")


def load_cuda(index: int) -> tuple[int, int]:
    """Makes GPU number `index` usable by TVM.

    Returns:
        Its compute capability times 10, and the shared memory a block may use, in bytes.

    Raises:
        ArtifactError: no CUDA runtime library, driver or GPU.
    """
    if libraries.load_driver() is None:
        raise ArtifactError(
            f"this artifact needs CUDA, but no NVIDIA driver is installed ({libraries.DRIVER} "
            f"cannot be loaded); {_ELSEWHERE}"
        )
    cudart = libraries.load_cudart()
    if cudart is None:
        raise ArtifactError(
            f"this artifact needs CUDA, but {libraries.CUDART} was not found; "
            "pip install 'nvidia-cuda-runtime==13.0.*'"
        )
    _check_gpu(cudart, index)
    if not _registered(_CUDA_MARK):
        _load_tvm("libtvm_runtime_cuda.so")
    major, minor, shared = (
        _attribute(cudart, number, index) for number in (_CC_MAJOR, _CC_MINOR, _SHARED_OPTIN)
    )
    return 10 * major + minor, shared


def _check_gpu(cudart: ctypes.CDLL, index: int) -> None:
    count = ctypes.c_int(0)
    status = cudart.cudaGetDeviceCount(ctypes.byref(count))
    if status or index >= count.value:
        cudart.cudaGetErrorString.restype = ctypes.c_char_p
        why = f": {cudart.cudaGetErrorString(status).decode()}" if status else ""
        raise ArtifactError(
            f"this artifact needs GPU {index}, but {0 if status else count.value} usable GPUs "
            f"were found{why}; {_ELSEWHERE}"
        )


# Their machine code and that of other GPUs of their generation do not run on each other.
_BOARDS = {87, 110}  # Jetson Orin, Thor


def choose_modules(
    modules: Sequence[Mapping[str, Any]], cc: int, shared_bytes: int
) -> list[Mapping[str, Any]]:
    """The modules for a GPU, one for each batch: those of its own architecture, else of the newest
    older one of its generation (sm_86 code runs on sm_89), else PTX.

    Args:
        modules: of a manifest.
        cc: compute capability times 10.
        shared_bytes: what a block may use on that GPU.

    Raises:
        ArtifactError: none fits.
    """
    families: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for module in modules:
        families.setdefault((module["arch"], module["kind"]), []).append(module)
    fitting = []
    for (arch, kind), family in families.items():
        level, is_code = int(re.sub(r"\D", "", arch) or 0), kind == "cubin"
        functions = [f for module in family for f in module["functions"]]
        needed = max((int(f.get("shared_bytes", 0)) for f in functions), default=0)
        # sm_90a runs nowhere else
        specific = arch[-1:] in ("a", "f") or not _BOARDS.isdisjoint((level, cc))
        same = level == cc if specific else level // 10 == cc // 10 and level <= cc
        if (same if is_code else level <= cc) and needed <= shared_bytes:
            fitting.append((is_code, level, family))
    if not fitting:
        have = ", ".join(f"{m['name']} ({m['kind']} for {m['arch']})" for m in modules)
        raise ArtifactError(
            f"no module of this artifact runs on this GPU (sm_{cc}, {shared_bytes} bytes of shared "
            f"memory per block); it holds {have}. Compile with --arch sm_{cc}"
        )
    return max(fitting, key=lambda item: item[:2])[2]


def load_params(
    data: Path, indexes: Sequence[tuple[Path, int]], memory: Memory
) -> list[Sequence[Any]]:
    """The parameters of several modules on the device; tensors that they share are loaded once.

    Args:
        data: the file that holds all tensors.
        indexes: of each module TVM's index, and how many tensors it must list.
    Raises:
        ArtifactError: a file that cannot be read, an index of another length.
    """
    import tvm_ffi

    tensors: dict[tuple, Any] = {}
    return [
        tvm_ffi.Array(_load_listed(data, index, count, tensors, memory)) for index, count in indexes
    ]


def _load_listed(
    data: Path, index: Path, count: int, tensors: dict[tuple, Any], memory: Memory
) -> list[Any]:
    """The tensors of one index, in its order; those not in `tensors` are loaded into it."""
    try:
        content = json.loads(index.read_text("utf-8"))
        records = [record for shard in content["records"] for record in shard["records"]]
        stored = np.memmap(data, "uint8", "r") if records else np.empty(0, "uint8")
        keys = [(r["byteOffset"], tuple(r["shape"]), r["dtype"]) for r in records]
        for offset, shape, dtype in dict.fromkeys(keys):
            if (offset, shape, dtype) not in tensors:
                typed = numpy_dtype(dtype)
                end = offset + typed.itemsize * math.prod(shape)
                array = stored[offset:end].view(typed).reshape(shape)
                tensors[offset, shape, dtype] = memory.upload(array)
    except (OSError, RuntimeError, ValueError, LookupError, TypeError) as error:
        raise ArtifactError(
            f"the parameters of {index.parent} cannot be loaded: {error}; {hint(error)}"
        ) from error
    if len(keys) != count:
        raise ArtifactError(
            f"{index.parent} holds {len(keys)} parameters, the manifest names {count}; compile "
            "the model again"
        )
    return [tensors[key] for key in keys]


def library_name(file: Path) -> str:
    """A name under which the shared library `file` is loaded, itself and no other.

    glibc knows a loaded library by its name: where an artifact was replaced in this process, it
    would give out the old one. Each file seen at a path is called with another number of slashes.
    """
    file, status = file.absolute(), file.stat()
    with _seen_lock:
        files = _seen.setdefault(file, [])
        identity = (status.st_dev, status.st_ino)
        if identity not in files:
            files.append(identity)
        return f"{file.parent}{'/' * (1 + files.index(identity))}{file.name}"


def _registered(name: str) -> bool:
    import tvm_ffi

    return tvm_ffi.get_global_func(name, allow_missing=True) is not None


def _load_tvm(name: str) -> None:
    try:
        libraries.load(libraries.tvm_lib(name))
    except (BuildError, OSError) as error:
        raise ArtifactError(f"TVM's {name} cannot be loaded: {error}") from error


def _attribute(cudart: ctypes.CDLL, number: int, index: int) -> int:
    value = ctypes.c_int(0)
    cudart.cudaDeviceGetAttribute(ctypes.byref(value), number, index)
    return value.value


def _release(version: str) -> str:
    found = re.match(r"\d+\.\d+\.\d+", version)
    return found.group() if found else version
