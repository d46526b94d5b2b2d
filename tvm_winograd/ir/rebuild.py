"""Nodes of TVM's IR with one part exchanged; TVM has no such copies of its own."""

from __future__ import annotations

from typing import Any

_FIELDS = (
    "iter_vars", "reads", "writes", "name_hint", "body", "init", "alloc_buffers", "match_buffers",
    "annotations",
)  # fmt: skip  # of an SBlock, in the order of its constructor


def block_with(block: Any, **changes: Any) -> Any:
    """An SBlock like `block` but for `changes`, e.g. body=..., annotations={}."""
    from tvm import s_tir

    values = {name: getattr(block, name) for name in _FIELDS}
    unknown = set(changes) - set(values)
    assert not unknown, f"an SBlock has no {unknown}"
    return s_tir.SBlock(*(values | changes).values())


def realize_with(realize: Any, block: Any) -> Any:
    """An SBlockRealize like `realize` of another block."""
    from tvm import s_tir

    return s_tir.SBlockRealize(realize.iter_values, realize.predicate, block)


def function_with(func: Any, params: list[Any], body: Any) -> Any:
    """A relax function like `func` with other parameters and another body."""
    from tvm import relax

    return relax.Function(params, body, func.ret_ty, func.is_pure, func.attrs)


def main_rewritten(mod: Any, visitor: Any) -> Any:
    """`mod` with "main" rewritten by `visitor`, a PyExprMutator made of the same module."""
    visitor.builder_.update_func(mod.get_global_var("main"), visitor.visit_expr(mod["main"]))
    return visitor.builder_.get()
