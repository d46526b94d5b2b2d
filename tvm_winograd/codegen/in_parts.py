"""Device code in parts of a few kernels, compiled side by side: each a module of its own.

A part is the unit of the cache of compiled kernels too, so that what two networks share is compiled
once. How a network is divided depends on its kernels alone, never on the machine.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import cache
from typing import Any

from ..ir.tvm_027 import code_of, wrap_module_builder
from .nvrtc import current_request

_KERNELS = 6  # of a part; a convolution has fewer with its packing, and stays whole
Builder = Callable[[Any, dict[Any, Any], Any], Any]


def install() -> None:
    """Makes TVM build CUDA modules in parts in this process."""
    wrap_module_builder(_in_parts)


def _in_parts(original: Builder) -> Builder:
    def build(host: Any, devices: dict[Any, Any], target_host: Any) -> Any:
        """The host's module with those of all devices imported."""
        cuda = {target: mod for target, mod in devices.items() if target.kind.name == "cuda"}
        rest = {target: mod for target, mod in devices.items() if target not in cuda}
        jobs = [(part, target) for target, mod in cuda.items() for part in parts(mod)]
        request = current_request()
        request.kernels.expect(sum(len(part.functions) for part, _ in jobs))
        begun = [_pool().submit(copy_context().run, _built, *job) for job in jobs]
        try:
            library = original(host, rest, target_host)
            for module in begun:
                library.import_module(module.result())
        finally:
            _cancel(begun)
        return library

    return build


def parts(mod: Any) -> Iterator[Any]:
    """A device module in parts of at most _KERNELS functions, in the order of their names."""
    import tvm

    functions = sorted(mod.functions.items(), key=lambda item: str(item[0].name_hint))
    for i in range(0, len(functions), _KERNELS):
        yield tvm.IRModule(dict(functions[i : i + _KERNELS]), attrs=mod.attrs)


def _built(part: Any, target: Any) -> Any:
    with target:  # the callback may ask which it is
        module = code_of(part, target)
    current_request().kernels.count(len(part.functions))
    return module


def _cancel(begun: list[Future[Any]]) -> None:
    for module in begun:
        module.cancel()


@cache
def _pool() -> ThreadPoolExecutor:
    """One for all builds of the process: NVRTC does not hold Python's lock."""
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="cuda")
