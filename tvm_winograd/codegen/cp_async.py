"""cp.async in CUDA code: our helpers in place of TVM's, behind a guard and beside held loads.

Where a guard fails TVM 0.27 stores zeros with a second instruction, and it turns every index into
bytes in 32 bits, which keeps ptxas from using immediate offsets. cp.async fills zeros itself:
implicit GEMM's main loop for 3x3 with stride 2 shrinks from 675 to 644 instructions, and (64, 56^2)
-> 128 at batch 128 takes 349 us instead of 359 (H200, 2026-11-30).

Other copies without a guard stay TVM's: with such addresses F(4x4)'s GEMM has fewer instructions
too, but lost 2 to 3 %. They reach 2 GiB (`schedules.blocks.MOST_COPIED`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import BuildError
from ..ir.tvm_027 import call_cuda, code_generator, set_code_generator

_OP = "s_tir_cp_async_raw"  # what InjectPTXAsyncCopy emits
_COPY = """
__forceinline__ __device__ void {name}(void* to, int to_at, const void* from, int from_at, int guard) {{
  unsigned int address = (unsigned int)__cvta_generic_to_shared(to) + to_at * {to_bytes}u;
  asm volatile("cp.async.{cache}.shared.global [%0], [%1], {size}, %2;"
    :: "r"(address), "l"((const {word}*)from + from_at), "r"(guard ? {size} : 0));
}}
"""  # noqa: E501
# `near`: bytes from the first of several copies, a number, which becomes an immediate.
_COPY_NEAR = """
__forceinline__ __device__ void {name}(void* to, int to_at, int to_near, const void* from, int from_at, int from_near) {{
  unsigned int address = (unsigned int)__cvta_generic_to_shared(to) + to_at * {to_bytes}u + to_near;
  asm volatile("cp.async.{cache}.shared.global [%0], [%1], {size};"
    :: "r"(address), "l"((const char*)((const {word}*)from + from_at) + from_near));
}}
"""  # noqa: E501
# C types of so many bytes, to count addresses in
_WORDS = {
    1: "unsigned char", 2: "unsigned short", 4: "unsigned int", 8: "unsigned long long",
    16: "uint4",
}  # fmt: skip


def install() -> None:
    """Makes TVM's CUDA code generator use the helper, in this process."""
    plain = code_generator(_OP)
    if not hasattr(plain, "guarded"):

        def copy(*arguments: Any) -> Any:
            return _guarded(*arguments) if is_guarded(arguments) else plain(list(arguments))

        set_code_generator(_OP, copy).guarded = _guarded


def is_guarded(arguments: Any) -> bool:
    """Whether the operator has a guard: the sixth argument, unless it is -1."""
    return len(arguments) == 6 and getattr(arguments[5], "value", arguments[5]) != -1


def is_plain(call: Any) -> bool:
    """Whether a call is of the operator, without a guard."""
    name = getattr(call.op, "name", "")
    return str(name).endswith("cp_async_raw") and not is_guarded(call.args)


def copy_near(first: tuple[Any, ...], near: Sequence[int], size: Any) -> Any:
    """The call of a copy that lies `near` elements, of the destination and source, from `first`.

    Args:
        first: pointer and index of the destination, of the source.  size: bytes.
    Raises:
        BuildError: as for copies behind a guard.
    """
    dst, dst_at, src, src_at = first
    name, values = _described("near", dst, src, size)
    to, origin = near[0] * values["to_bytes"], near[1] * values["from_bytes"]
    source = _COPY_NEAR.format(name=name, **values)
    return call_cuda(name, dst, dst_at, to, src, src_at, origin, source=source)


def _guarded(dst: Any, dst_at: Any, src: Any, src_at: Any, size: Any, guard: Any) -> Any:
    """The call for arguments of the operator: pointers, indices of elements, bytes, the guard.

    Raises:
        BuildError: cp.async copies no such size, or an element is no whole number of bytes.
    """
    name, values = _described("guarded", dst, src, size)
    source = _COPY.format(name=name, **values)
    return call_cuda(name, dst, dst_at, src, src_at, guard, source=source)


def _described(kind: str, dst: Any, src: Any, size: Any) -> tuple[str, dict[str, Any]]:
    """(name of a helper, what its source is made of)."""
    size = int(size)
    if size not in (4, 8, 16):
        raise BuildError(f"cp.async of {size} bytes: it copies 4, 8 or 16")
    to_bytes, from_bytes = _element_bytes(dst), _element_bytes(src)
    cache = "cg" if size == 16 else "ca"
    values = {"cache": cache, "size": size, "to_bytes": to_bytes, "from_bytes": from_bytes}
    name = f"cp_async_{kind}_{cache}_{size}_{to_bytes}_{from_bytes}"
    return name, {**values, "word": _WORDS[from_bytes]}


def _element_bytes(pointer: Any) -> int:
    """Of what a pointer variable points to, maybe a vector; 1 if it does not say."""
    from tvm import DataType

    element = getattr(getattr(pointer, "ty", None), "element_type", None)
    if (named := getattr(element, "dtype", None)) is None:
        return 1
    dtype = DataType(str(named))
    size, rest = divmod(dtype.bits * dtype.lanes, 8)
    if rest or size not in _WORDS:
        raise BuildError(f"cp.async between arrays of {named}: 1, 2, 4, 8 or 16 bytes an element")
    return size
