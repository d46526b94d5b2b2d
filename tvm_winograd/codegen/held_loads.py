"""Loads and copies that a schedule marks (`ir.marks`), as inline assembly in CUDA code.

HELD: loads to registers that stay where the schedule puts them. The fused Winograd kernels load the
next step's patch before they multiply. Through `__restrict__` pointers these load constants, which
ptxas may do whenever it likes: it took 8 of the 16 of F(2x2) behind the barrier that starts the
next step, where the patch is transformed at once and nothing hides their latency. A plain
`ld.global` passes no barrier. Its guard is a predicate, not a branch.

NEAR: cp.async without a guard whose addresses are that of the first copy and an immediate; TVM's
own takes three instructions for each. Loads that are held have such addresses too.
"""

from __future__ import annotations

from typing import Any

from ..ir.marks import HELD, NEAR
from ..ir.tvm_027 import add_pipeline, call_cuda, rewritten
from . import cp_async

PIPELINE = "tvm_winograd"  # of TVM's lowering passes, with `replaced` behind them
_WORD = 4  # bytes
_NEAR = 2**27  # elements, of at most 16 bytes: fewer are an immediate of 32 bits in bytes
_LOAD = "load_held"
_LOAD_IF = "load_held_if"
_SOURCES = {
    _LOAD: """
__forceinline__ __device__ float load_held(const float* from, int bytes) {
  float value;
  asm volatile("ld.global.f32 %0, [%1];" : "=f"(value) : "l"((const char*)from + bytes));
  return value;
}
""",
    _LOAD_IF: """
__forceinline__ __device__ float load_held_if(const float* from, int bytes, int guard) {
  float value;
  asm volatile("{.reg .pred p; setp.ne.s32 p, %2, 0; mov.b32 %0, 0; @p ld.global.f32 %0, [%1];}"
    : "=f"(value) : "l"((const char*)from + bytes), "r"(guard));
  return value;
}
""",
}


def install() -> None:
    """Registers PIPELINE in this process."""
    add_pipeline(PIPELINE, replaced)


def replaced(func: Any) -> Any:
    """A device function with what is marked as calls, the marks taken off."""
    from tvm import tirx

    return func.with_body(rewritten(func.body, tirx.AttrStmt, _marked))


def _marked(region: Any) -> Any:
    """One copy of the loop: its first address is near to all."""
    from tvm import ir, tirx

    if region.attr_key == HELD:
        return rewritten(region.body, tirx.BufferStore, _Loads())
    if region.attr_key == NEAR:
        return rewritten(region.body, ir.Call, _Copies())
    return region


class _Loads:
    """Makes a call of the load that a store keeps; knows the first load."""

    def __init__(self) -> None:
        self._first: Any = None

    def __call__(self, store: Any) -> Any:
        from tvm import ir, tirx

        load, guard = store.value, []
        if isinstance(load, ir.Call) and load.op.name.endswith("if_then_else"):
            inside, load, _ = load.args
            guard = [inside.astype("int32")]
        if not isinstance(load, ir.TensorLoad) or str(load.ty.dtype) != "float32":
            return store
        return tirx.BufferStore(store.buffer, self._call(load, guard), store.indices)

    def _call(self, load: Any, guard: list[Any]) -> Any:
        from tvm import tirx

        first, words = self._first, None
        if first is not None and first.source.same_as(load.source):
            words = _distance(load.indices[0], first.indices[0])
        if words is None:
            first, words = load, 0
        self._first = first
        name = _LOAD_IF if guard else _LOAD
        arguments = [tirx.address_of(first), words * _WORD, *guard]
        return call_cuda(name, *arguments, source=_SOURCES[name], returns="float32")


class _Copies:
    """Makes a call of our own of a cp.async without a guard; knows the first."""

    def __init__(self) -> None:
        self._first: tuple[Any, ...] | None = None

    def __call__(self, call: Any) -> Any:
        if not cp_async.is_plain(call):
            return call
        to, to_at, source, from_at, size = call.args[:5]
        here, first = (to, to_at, source, from_at), self._first
        apart: list[int | None] = [None]
        if first is not None and first[0].same_as(to) and first[2].same_as(source):
            apart = [_distance(to_at, first[1]), _distance(from_at, first[3])]
        near = [distance for distance in apart if distance is not None]
        if first is None or len(near) < 2:
            first, near = here, [0, 0]
        self._first = first
        return cp_async.copy_near(first, near, size)


def _distance(index: Any, first: Any) -> int | None:
    """`index - first`, if that is one number whatever the thread, and an immediate holds it."""
    from tvm.sym import Analyzer

    apart = getattr(Analyzer().simplify(index - first), "value", None)
    return None if apart is None or abs(int(apart)) >= _NEAR else int(apart)
