"""A network's module as a shared library, taken from an earlier run where nothing has changed."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ..deploy.libraries import package_version
from ..gpu import Gpu, Hardware
from . import build
from .kernel_cache import key_of, user_cache
from .nvrtc import Progress, compiler_version
from .plan import Plan

_PACKAGES = ("apache-tvm", "apache-tvm-ffi", "nvidia-cuda-nvrtc", "nvidia-cuda-cccl")
_OURS = (".", "../ir")  # folders of the code between a plan and machine code


def library_of(
    plan: Plan,
    hardware: Hardware,
    *,
    compiler: str,
    ptx: bool,
    cache: bool,
    pass_config: Mapping[str, Any],
    kernels: Progress,
) -> bytes:
    """The shared library that `build.build` and `build.export` make of a plan.

    Args:
        cache: take what an earlier run made of an equal plan, and keep what this one does.
    Raises:
        BuildError: the module or the toolchain does not allow it.
    """
    how: dict[str, Any] = {"compiler": compiler, "ptx": ptx, "pass_config": dict(pass_config)}
    kept = user_cache() if cache else None
    key = key_of(_depends_on(plan, hardware, how)) if kept else ""
    if kept and (found := kept.get(key)):
        return found[0]
    executable = build.build(plan, hardware, cache=cache, kernels=kernels, **how)
    with tempfile.TemporaryDirectory(prefix="tvm_winograd-") as folder:
        data = build.export(executable, Path(folder, "module.so"), ptx=ptx).read_bytes()
    if kept:
        kept.put(key, data, "")
    return data


def _depends_on(plan: Plan, hardware: Hardware, how: Mapping[str, Any]) -> Iterator[str]:
    """Everything that the library's bytes depend on."""
    import tvm

    yield tvm.ir.save_json(plan.mod)
    yield repr(hardware)
    yield repr(sorted(how.items()))
    yield compiler_version(how["compiler"]) if isinstance(hardware, Gpu) else ""
    yield build.host_compiler()
    yield from (str(package_version(name)) for name in _PACKAGES)
    yield _code_between()


@cache
def _code_between() -> str:
    """A hash of our code behind the plan."""
    found, here = hashlib.sha256(), Path(__file__).parent
    for folder in _OURS:
        for path in sorted((here / folder).resolve().glob("*.py")):
            found.update(path.read_bytes())
    return found.hexdigest()
