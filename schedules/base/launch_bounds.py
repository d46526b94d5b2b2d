"""__launch_bounds__ with a least number of blocks an SM: no schedule primitive of TVM says it."""

from __future__ import annotations

from typing import Any

from tvm_winograd.ir.rebuild import block_with, realize_with

_KEY = "tirx.launch_bounds_min_blocks_per_sm"


def require(func: Any, block: str, min_blocks: int) -> Any:
    """The unscheduled `func`, of whose kernel with `block` an SM must hold `min_blocks` blocks.

    ptxas then gives a thread no more registers than that allows. 0: `func` as it is.
    """
    return func if min_blocks == 0 else func.with_body(_mark(func.body, block, min_blocks))


def _mark(stmt: Any, block: str, min_blocks: int) -> Any:
    """`stmt` with an attribute around the body of `block`: TVM finds it in the kernel's code."""
    from tvm import s_tir, tirx

    if isinstance(stmt, tirx.SeqStmt):
        return tirx.SeqStmt([_mark(s, block, min_blocks) for s in stmt.seq])
    if isinstance(stmt, tirx.For):
        body = _mark(stmt.body, block, min_blocks)
        return tirx.For(stmt.loop_var, stmt.min, stmt.extent, stmt.kind, body)
    if not isinstance(stmt, s_tir.SBlockRealize):
        return stmt
    b = stmt.block
    if b.name_hint == block:
        count = tirx.const(min_blocks, "int32")
        body = tirx.AttrStmt(tirx.const(0, "int32"), _KEY, count, b.body)
    else:
        body = _mark(b.body, block, min_blocks)
    return realize_with(stmt, block_with(b, body=body))
