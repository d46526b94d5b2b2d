"""Run a scheduled GPU module on the CPU, to check index arithmetic and guards without a GPU.

The module is the one that would be built for the GPU, not a second run of the schedule: its
threads become loops, its memory scopes plain memory, its pipeline annotations vanish. That is
done on the IR, not on its script: before lowering a scheduled function consists of four kinds of
statements only, and nothing depends on how TVM prints them.

Not covered: everything about order and visibility between threads (barriers, races, the software
pipeline, registers of another thread), alignment, and what the compiler makes of the loops.
"""

from __future__ import annotations

from typing import Any

from tvm_winograd.ir.rebuild import block_with, realize_with

_KEPT = ("global", "")


def serialise(mod: Any) -> Any:
    """The IRModule `mod` with every PrimFunc's thread loops made serial; `mod` stays as it is."""
    import tvm
    from tvm import s_tir, tirx

    functions = {}
    for var, func in mod.functions_items():
        if isinstance(func, tirx.PrimFunc):
            func = func.with_body(_statement(func.body)).without_attr("target")
        functions[var] = func
    sch = s_tir.Schedule(tvm.IRModule(functions))
    for var in functions:
        sch.work_on(var.name_hint)
        _drop_scopes(sch, sch.get_sblock("root"))
    return sch.mod


def _statement(stmt: Any) -> Any:
    """`stmt` with serial loops and without annotations."""
    from tvm import s_tir, tirx

    if isinstance(stmt, tirx.SeqStmt):
        return tirx.SeqStmt([_statement(s) for s in stmt.seq])
    if isinstance(stmt, tirx.For):
        kind = (
            tirx.ForKind.VECTORIZED if stmt.kind == tirx.ForKind.VECTORIZED else tirx.ForKind.SERIAL
        )
        return tirx.For(stmt.loop_var, stmt.min, stmt.extent, kind, _statement(stmt.body))
    if isinstance(stmt, s_tir.SBlockRealize):
        b = stmt.block
        init = None if b.init is None else _statement(b.init)
        block = block_with(b, body=_statement(b.body), init=init, annotations={})
        return realize_with(stmt, block)
    return stmt


def _drop_scopes(sch: Any, root: Any) -> None:
    """Every buffer written by the blocks under `root` into plain memory."""
    for block in sch.get_child_blocks(root):
        for i, region in enumerate(sch.get(block).writes):
            if region.source.scope() not in _KEPT:
                sch.set_scope(block, i, "global")
