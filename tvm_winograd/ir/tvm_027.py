"""Everything of TVM 0.27 that its public interface does not offer: the next release breaks this.

Each function names what it reaches for, and why no public way serves.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

# Turns plain copies next to a cp.async into DMA calls that CUDA does not have (patches of
# unpadded maps are such copies); TVM runs it whenever tirx.use_async_copy is set.
HEXAGON_PASS = "s_tir.LowerAsyncDMA"


def note_library(name: str, library: Any) -> None:
    """Tells TVM that one of its libraries is loaded: it would look for it by a path of its own."""
    import tvm.base

    tvm.base._LOADED_LIBS[name] = library


def code_generator(operator: str) -> Callable[..., Any]:
    """The function that writes CUDA for an operator, to be wrapped by `set_code_generator`."""
    from tvm.backend.cuda.codegen.registry import CODEGEN_REGISTRY

    found: Callable[..., Any] = CODEGEN_REGISTRY["tirx." + operator]
    return found


def set_code_generator(operator: str, function: Callable[..., Any]) -> Any:
    """Puts `function` in the place of the one that writes CUDA for an operator.

    Returns:
        What `code_generator` gives from now on.
    """
    from tvm.backend.cuda.codegen.registry import register_codegen

    return register_codegen(operator)(function)


def call_cuda(name: str, *arguments: Any, source: str, returns: str = "void") -> Any:
    """The call of a device function whose CUDA source goes along."""
    from tvm.backend.cuda.op import cuda_func_call

    return cuda_func_call(name, *arguments, source_code=source, return_type=returns)


def add_pipeline(name: str, last: Callable[[Any], Any]) -> None:
    """Registers TVM's lowering passes with `last` (a device PrimFunc to another) behind them.

    Does nothing the second time. A source rewrite would be public, and blind.
    """
    import tvm
    from tvm.tirx import compilation_pipeline as pipelines

    if name in pipelines.PIPELINE_MAP:
        return

    def factory() -> tuple[Any, Any, Any]:
        lower, host, device = pipelines.get_tir_pipeline("s_tir")

        def finalize() -> Any:
            done = tvm.tirx.transform.prim_func_pass(lambda func, *_: last(func), opt_level=0)
            return tvm.transform.Sequential([device(), done])

        return lower, host, finalize

    pipelines.register_tir_pipeline(name, factory)


def wrap_module_builder(wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Puts wrap(f) in the place of the function f that makes one module of host and device code.

    f takes (host functions, target -> device functions, the host's target). Does nothing the second
    time. A build has no public step between the lowered functions and the library.
    """
    module = _build_module()
    if not hasattr(module.tir_to_runtime, "__wrapped__"):
        module.tir_to_runtime = functools.wraps(module.tir_to_runtime)(wrap(module.tir_to_runtime))


def code_of(functions: Any, target: Any) -> Any:
    """The runtime module of lowered device functions."""
    return _build_module().codegen_build(functions, target)


def _build_module() -> Any:
    """tvm/tirx/build.py, whose name in the package is that of a function in it."""
    return importlib.import_module("tvm.tirx.build")


def rewritten(node: Any, kind: type, function: Callable[[Any], Any]) -> Any:
    """`node` with every inner node of a class replaced by what `function` gives for it."""
    import tvm_ffi

    return tvm_ffi.structural_map(node, (kind, function))


def tune_context(mod: Any, target: Any, name: str) -> Any:
    """A MetaSchedule TuneContext that names the target for a cost model.

    Not by its Python constructor: that imports TVM's tensor intrinsics, which takes 22 to 55 s
    and serves tensorized schedules only.
    """
    from tvm.s_tir.meta_schedule import _ffi_api

    return _ffi_api.TuneContext(mod, target, None, None, name, 1, -1, None)


def structural_hash(mod: Any) -> str:
    """A module's hash as MetaSchedule's databases write it."""
    from tvm.s_tir.meta_schedule.utils import shash2hex

    return str(shash2hex(mod))
