"""Torch's sorts and running sums. A function takes (fx node, importer)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import sorting
from .torch_ops import argument, refuse, typed

Convert = Callable[[Any, Any], Any]


def _top_k(node: Any, importer: Any) -> Any:
    largest = bool(argument(node, 3, "largest", True))
    return _first(node, importer, argument(node, 2, "dim", -1), largest, node.args[1])


def _sort(node: Any, importer: Any) -> Any:
    """All of them; equal ones keep their order, whether that is asked for or not."""
    stable = "stable" in str(node.target)
    axis = argument(node, 2 if stable else 1, "dim", -1)
    return _first(
        node, importer, axis, bool(argument(node, 3 if stable else 2, "descending", False))
    )


def _first(node: Any, importer: Any, axis: int, largest: bool, count: int | None = None) -> Any:
    from tvm import relax

    x = importer.env[node.args[0]]
    axis = _axis(node, x, axis)
    count = int(x.ty.shape.values[axis]) if count is None else count
    pair = sorting.first(importer.block_builder, x, axis, count, largest)
    return importer.block_builder.emit(relax.Tuple(list(pair)))


def _running_sum(node: Any, importer: Any) -> Any:
    dtype = str(importer._convert_data_type(node.meta["val"].dtype))
    x = typed(node.args[0], dtype, importer)
    return sorting.running_sum(
        importer.block_builder, x, _axis(node, x, node.args[1]), exclusive=False, reverse=False
    )


def _axis(node: Any, x: Any, axis: int) -> int:
    axis %= max(len(x.ty.shape.values), 1)
    if why := sorting.too_long(x, axis):
        raise refuse(
            f"{node.target} (node {node.name!r})", f"its axis has {why}", "compute it outside"
        )
    return axis


CONVERT: dict[str, Convert] = {
    "topk.default": _top_k,
    "sort.default": _sort,
    "sort.stable": _sort,
    "cumsum.default": _running_sum,
}
