"""cp.async in CUDA code: our helper in place of TVM's.

TVM 0.27 turns the index of every copy into bytes in 32 bits, which reaches 2 GiB and keeps ptxas
from using immediate offsets: four more instructions a copy. Where a guard fails it stores zeros
with a second instruction; cp.async fills them itself.
"""

from __future__ import annotations

from typing import Any

from .errors import BuildError

_OP = "s_tir_cp_async_raw"  # what InjectPTXAsyncCopy emits
_COPY = """
__forceinline__ __device__ void {name}(void* to, int to_at, const void* from, int from_at{more}) {{
  unsigned int address = (unsigned int)__cvta_generic_to_shared(to) + to_at * {dst_bytes}u;
  asm volatile("cp.async.{cache}.shared.global [%0], [%1], {size}{fill};"
    :: "r"(address), "l"((const {word}*)from + from_at){read});
}}
"""
_WORDS = {1: "unsigned char", 2: "unsigned short", 4: "unsigned int", 8: "unsigned long long"}


def install() -> None:
    """Makes TVM's CUDA code generator use the helper, in this process."""
    from tvm.backend.cuda.codegen.registry import register_codegen

    register_codegen(_OP)(_copy)


def _copy(dst: Any, dst_at: Any, src: Any, src_at: Any, size: Any, guard: Any = None) -> Any:
    """The call for arguments of the operator: pointers, indices of elements, bytes, a guard.

    Raises:
        BuildError: cp.async copies no such size.
    """
    from tvm.backend.cuda.op import cuda_func_call

    size = int(size)
    if size not in (4, 8, 16):
        raise BuildError(f"cp.async of {size} bytes: it copies 4, 8 or 16")
    guarded = guard is not None and getattr(guard, "value", 0) != -1
    dst_bytes, src_bytes = _element_bytes(dst), _element_bytes(src)
    cache = "cg" if size == 16 else "ca"
    name = f"cp_async_{cache}_{size}_{dst_bytes}_{src_bytes}" + "_guarded" * guarded
    source = _COPY.format(
        name=name,
        word=_WORDS[src_bytes],
        more=", int guard" * guarded,
        dst_bytes=dst_bytes,
        cache=cache,
        size=size,
        fill=", %2" * guarded,
        read=f', "r"(guard ? {size} : 0)' * guarded,
    )
    arguments = [dst, dst_at, src, src_at, *([guard] if guarded else [])]
    return cuda_func_call(name, *arguments, source_code=source)


def _element_bytes(pointer: Any) -> int:
    """Of what a pointer variable points to; 1 if it does not say."""
    from tvm import DataType

    element = getattr(getattr(pointer, "ty", None), "element_type", None)
    dtype = getattr(element, "dtype", None)
    return 1 if dtype is None else DataType(str(dtype)).bits // 8
