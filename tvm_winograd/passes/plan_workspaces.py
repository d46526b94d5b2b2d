"""Workspaces become arguments: a PrimFunc's buffers in global memory are allocated by its caller.

TVM would take them from a pool, at run time and in each call. As arguments the memory planner sees
them, lets layers share them, and their addresses are fixed, as a captured CUDA graph needs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax, s_tir, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from ..ir.rebuild import block_with, realize_with

_ON_THE_HOST = (tirx.ForKind.SERIAL, tirx.ForKind.UNROLLED)  # one iteration after the other


@dataclass(frozen=True)
class Workspace:
    """A buffer that a function needs only while it runs."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * tvm.DataType(self.dtype).itemsize

    def as_dict(self) -> dict[str, Any]:
        return {"shape": list(self.shape), "dtype": self.dtype}


Hoisted = tuple[tirx.PrimFunc, list[Workspace]]


def plan_workspaces(mod: tvm.IRModule) -> tuple[tvm.IRModule, dict[str, list[Workspace]]]:
    """The module whose PrimFuncs take their workspaces as the last arguments, as outputs.

    Args:
        mod: scheduled; Relax calls its PrimFuncs by call_tir.
    Returns:
        The module, and the workspaces of each PrimFunc by its name; most have none.
    """
    funcs = {g: f for g, f in mod.functions_items() if isinstance(f, tirx.PrimFunc)}
    hoisted = {g.name_hint: hoist_workspaces(f) for g, f in funcs.items()}
    # those with workspaces change their type: they leave the module, the mutator adds them anew
    rest = {g: f for g, f in mod.functions_items() if not hoisted.get(g.name_hint, (f, []))[1]}
    mod = tvm.IRModule(rest, mod.attrs)
    calls = _Calls(mod, {name: made for name, made in hoisted.items() if made[1]})
    for gvar, func in mod.functions_items():
        if isinstance(func, relax.Function):
            calls.builder_.update_func(gvar, calls.visit_expr(func))
    return calls.builder_.get(), {name: workspaces for name, (_, workspaces) in hoisted.items()}


def hoist_workspaces(func: tirx.PrimFunc) -> Hoisted:
    """One scheduled function with its workspaces as parameters; itself if it has none.

    Only what lives outside every thread and parallel loop is a workspace: tiles inside belong to
    their thread.
    """
    if not any(b.scope() == "global" for b in func.body.block.alloc_buffers):
        return func, []
    placed = tvm.transform.Sequential(_placing_passes())(tvm.IRModule({"main": func}))["main"]
    buffers: list[Any] = []
    body = _strip(placed.body, buffers)
    if not buffers:
        return func, []
    hoisted = tirx.PrimFunc([*placed.params, *buffers], body, placed.ret_type, placed.attrs)
    return hoisted, [Workspace(tuple(int(d) for d in b.shape), str(b.dtype)) for b in buffers]


def _placing_passes() -> list[Any]:
    """The first steps of TVM's own lowering, up to where a buffer's place and size are known.

    TVM repeats them later, on a function that they no longer change.
    """
    t = s_tir.transform
    return [
        t.CanonicalizeLoop(),
        t.LowerCrossThreadReduction(),
        t.LowerInitBlock(),
        t.PlanAndUpdateBufferAllocationLocation(),
        t.ConvertBlocksToOpaque(),
        t.LiftThreadBinding(),
        t.ManifestSharedMemoryLocalStage(),
        t.CompactBufferAllocation(),
    ]


def _strip(stmt: Any, found: list[Any]) -> Any:
    """`stmt` without its allocations of workspaces, which go to `found`."""
    if isinstance(stmt, s_tir.SBlockRealize):
        block = stmt.block
        kept = [b for b in block.alloc_buffers if b.scope() != "global"]
        found += [b for b in block.alloc_buffers if b.scope() == "global"]
        new = block_with(block, body=_strip(block.body, found), alloc_buffers=kept)
        return realize_with(stmt, new)
    if isinstance(stmt, tirx.SeqStmt):
        return tirx.SeqStmt([_strip(s, found) for s in stmt])
    if isinstance(stmt, tirx.For) and stmt.kind in _ON_THE_HOST:
        return tirx.For(
            stmt.loop_var, stmt.min, stmt.extent, stmt.kind, _strip(stmt.body, found),
            stmt.thread_binding, stmt.annotations, stmt.step,
        )  # fmt: skip
    return stmt


@mutator
class _Calls(PyExprMutator):
    """call_tir with an output more for each workspace, of which nothing is read.

    Args:
        hoisted: the functions that have workspaces, by name; the module lacks them.
    """

    def __init__(self, mod: tvm.IRModule, hoisted: Mapping[str, Hoisted]) -> None:
        super().__init__(mod)
        self.hoisted = {
            name: (self.builder_.add_func(func, name), workspaces)
            for name, (func, workspaces) in hoisted.items()
        }

    def visit_call_(self, call: relax.Call) -> Any:
        if call.op != tvm.ir.Op.get("relax.call_tir") or call.args[0].name_hint not in self.hoisted:
            return super().visit_call_(call)
        gvar, workspaces = self.hoisted[call.args[0].name_hint]
        (out,) = call.ty_args
        outputs = list(out.fields) if isinstance(out, relax.TupleType) else [out]
        types = [*outputs, *(relax.TensorType(w.shape, w.dtype) for w in workspaces)]
        both = self.builder_.emit(relax.call_tir(gvar, self.visit_expr(call.args[1]), types))
        items = [relax.TupleGetItem(both, i) for i in range(len(outputs))]
        return relax.Tuple(items) if isinstance(out, relax.TupleType) else items[0]
