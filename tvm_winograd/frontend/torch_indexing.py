"""torch's indexing as gathers: every index is checked or counted from the front.

A kernel reads wherever an index points. So a constant index outside its dimension is an error of
the model, a negative one gets the dimension added, and an index that is computed at run time is
held inside. Writing (`x[i] = v`) is a choice between the old values and gathered new ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax

from ..errors import ModelError
from .torch_ops import argument


def _sizes(x: Any) -> list[int]:
    return [int(dim) for dim in x.ty.shape.values]


def _where(node: Any) -> str:
    return f"{str(node.target).removeprefix('aten.')} (node {node.name!r})"


def checked(node: Any, values: np.ndarray, size: int, negative: bool = True) -> np.ndarray:
    """Constant indices of a dimension, counted from its front.

    Raises:
        ModelError: one lies outside.
    """
    outside = values[(values < (-size if negative else 0)) | (values >= size)]
    if outside.size:
        raise ModelError(
            f"{_where(node)}: the index {int(outside.flat[0])} lies outside a dimension of {size}; "
            "correct the model"
        )
    return np.where(values < 0, values + size, values).astype("int64")


def _index(node: Any, importer: Any, index: Any, size: int, negative: bool = True) -> Any:
    """An index tensor of the graph as int64, inside its dimension of `size`."""
    known = importer.known(index)
    if known is not None:
        return relax.const(checked(node, known, size, negative), "int64")
    emit, value = importer.block_builder.emit, importer.env[index]
    if str(value.ty.dtype) != "int64":
        value = emit(relax.op.astype(value, "int64"))
    zero, last, length = (relax.const(n, "int64") for n in (0, size - 1, size))
    from_end = emit(relax.op.add(value, length))
    value = emit(relax.op.where(emit(relax.op.less(value, zero)), from_end, value))
    return emit(relax.op.minimum(emit(relax.op.maximum(value, zero)), last))


def _select(node: Any, importer: Any) -> Any:
    x, dim = importer.env[node.args[0]], node.args[1]
    index = _index(node, importer, node.args[2], _sizes(x)[dim])
    return importer.block_builder.emit(relax.op.take(x, index, dim))


def _span(node: Any, size: int) -> tuple[int, int, int]:
    """Begin, end and step of a slice, inside the dimension."""
    start, end, step = (
        argument(node, i + first, name)
        for i, name in enumerate(("start", "end", "step"))
        for first in ([3] if "scatter" in str(node.target) else [2])
    )
    return slice(start, end, step).indices(size)


def _slice(node: Any, importer: Any) -> Any:
    x, dim = importer.env[node.args[0]], argument(node, 1, "dim", 0)
    size = _sizes(x)[dim]
    begin, end, step = _span(node, size)
    if (begin, end, step) == (0, size, 1):
        return x
    end = max(begin, end)
    return importer.block_builder.emit(relax.op.strided_slice(x, [dim], [begin], [end], [step]))


def _index_select(node: Any, importer: Any) -> Any:
    x, dim = importer.env[node.args[0]], node.args[1]
    index = _index(node, importer, node.args[2], _sizes(x)[dim])
    return importer.block_builder.emit(relax.op.take(x, index, dim))


def _take(node: Any, importer: Any) -> Any:
    emit = importer.block_builder.emit
    flat = emit(relax.op.reshape(importer.env[node.args[0]], [-1]))
    index = _index(node, importer, node.args[1], _sizes(flat)[0])
    return emit(relax.op.take(flat, index, 0))


def _embedding(node: Any, importer: Any) -> Any:
    table = importer.env[node.args[0]]
    index = _index(node, importer, node.args[1], _sizes(table)[0], negative=False)
    return importer.block_builder.emit(relax.op.take(table, index, 0))


def _gather(node: Any, importer: Any) -> Any:
    x, dim = importer.env[node.args[0]], node.args[1]
    index = _index(node, importer, node.args[2], _sizes(x)[dim])
    return importer.block_builder.emit(relax.op.gather_elements(x, index, axis=dim))


def _scatter(node: Any, importer: Any) -> Any:
    """x[..., index[i], ...] = source[i], both of one shape that fills x beside `dim`."""
    x, dim = importer.env[node.args[0]], node.args[1]
    emit, shape = importer.block_builder.emit, _sizes(x)
    index = _index(node, importer, node.args[2], shape[dim])
    dims = _sizes(index)
    if [n for i, n in enumerate(dims) if i != dim % len(shape)] != [
        n for i, n in enumerate(shape) if i != dim % len(shape)
    ]:
        raise ModelError(
            f"{_where(node)}: indices of the shape {dims} into {shape} are not supported; they "
            f"must be as long as the tensor beside axis {dim}"
        )
    source = node.args[3]
    if isinstance(source, int | float):
        source = emit(relax.op.full(dims, relax.const(source, x.ty.dtype), x.ty.dtype))
    else:
        source = importer.env[source]
        if _sizes(source) != dims:
            axes = list(range(len(dims)))
            source = emit(relax.op.strided_slice(source, axes, [0] * len(dims), dims))
    return emit(relax.op.scatter_elements(x, index, source, axis=dim))


class _Indexed:
    """A tensor whose indexed axes are one: x[:, i, j] takes from axis 1 of (n, h * w)."""

    def __init__(self, node: Any, importer: Any) -> None:
        self.node, self.importer = node, importer
        self.emit = importer.block_builder.emit
        self.x = importer.env[node.args[0]]
        self.shape = _sizes(self.x)
        self.indices = dict(self._expanded(node.args[1]))
        axes = list(self.indices)
        together = axes == list(range(axes[0], axes[0] + len(axes)))
        self.at = axes[0] if together else 0  # the axis of the result where the indices' come
        rest = [i for i in range(len(self.shape)) if i not in axes]
        self.order = [*rest[: self.at], *axes, *rest[self.at :]]
        self.before = [self.shape[i] for i in rest[: self.at]]
        self.after = [self.shape[i] for i in rest[self.at :]]
        self.count = math.prod(self.shape[i] for i in axes)
        self.length = len(axes)

    def _expanded(self, indices: Sequence[Any]) -> Any:
        """(axis, node or array): a constant mask gives the positions where it is true."""
        axis = 0
        for index in indices:
            if index is None:
                axis += 1
                continue
            known = self.importer.known(index)
            if str(index.meta["val"].dtype) != "torch.bool":
                yield axis, index if known is None else known
                axis += 1
                continue
            if known is None:
                raise ModelError(
                    f"{_where(self.node)}: a mask computed from the inputs gives a tensor of no "
                    "fixed size; use torch.where"
                )
            for positions in np.nonzero(known):
                yield axis, positions
                axis += 1

    def known(self) -> np.ndarray | None:
        """Positions in the joined axis, if all indices are constants."""
        total = np.zeros((), "int64")
        for axis, index in self.indices.items():
            if not isinstance(index, np.ndarray):
                return None
            size = self.shape[axis]
            total = total * size + checked(self.node, index, size)
        return total

    def positions(self) -> Any:
        """As `known`, a relax expression."""
        known = self.known()
        if known is not None:
            return relax.const(known, "int64")
        total: Any = None
        for axis, index in self.indices.items():
            size = self.shape[axis]
            one = _index(self.node, self.importer, index, size)
            if total is not None:
                scaled = self.emit(relax.op.multiply(total, relax.const(size, "int64")))
                one = self.emit(relax.op.add(scaled, one))
            total = one
        return total

    def joined(self) -> Any:
        """x with the indexed axes as one, at `at`."""
        x = self.x
        if self.order != sorted(self.order):
            x = self.emit(relax.op.permute_dims(x, self.order))
        if self.length == 1:
            return x
        return self.emit(relax.op.reshape(x, [*self.before, self.count, *self.after]))

    def parted(self, x: Any) -> Any:
        """`joined` undone."""
        if self.length > 1:
            x = self.emit(relax.op.reshape(x, [self.shape[i] for i in self.order]))
        if self.order == sorted(self.order):
            return x
        back = [self.order.index(i) for i in range(len(self.order))]
        return self.emit(relax.op.permute_dims(x, back))


def _index_tensor(node: Any, importer: Any) -> Any:
    """Index tensors are broadcast together: x[:, :, i, j] is pointwise."""
    what = _Indexed(node, importer)
    return what.emit(relax.op.take(what.joined(), what.positions(), what.at))


def _index_put(node: Any, importer: Any) -> Any:
    what = _Indexed(node, importer)
    positions, add = what.known(), bool(argument(node, 3, "accumulate", False))
    if positions is None or (add and np.unique(positions).size < positions.size):
        raise ModelError(
            f"{_where(node)}: writing is supported where the indices are constants, and where "
            "none repeats if the values are added"
        )
    values, emit = importer.env[node.args[2]], what.emit
    full = [*what.before, *positions.shape, *what.after]
    if _sizes(values) != full:
        values = emit(relax.op.broadcast_to(values, full))
    values = emit(relax.op.reshape(values, [*what.before, positions.size, *what.after]))
    return what.parted(_written(importer, what.joined(), values, what.at, positions.ravel(), add))


def _written(
    importer: Any, x: Any, values: Any, axis: int, positions: np.ndarray, add: bool = False
) -> Any:
    """x with slice i of `values` at positions[i] of `axis`; the last one wins."""
    emit, rank = importer.block_builder.emit, len(_sizes(x))
    source = np.full(_sizes(x)[axis], -1, "int64")
    source[positions] = np.arange(positions.size)
    column = [-1 if i == axis else 1 for i in range(rank)]
    mask = relax.const((source >= 0).reshape(column), "bool")
    new = emit(relax.op.take(values, relax.const(source.clip(0), "int64"), axis))
    if add:
        new = emit(relax.op.add(x, new))
    return emit(relax.op.where(mask, new, x))


def _slice_scatter(node: Any, importer: Any) -> Any:
    x, source = (importer.env[n] for n in node.args[:2])
    dim = argument(node, 2, "dim", 0) % len(_sizes(x))
    return _written(importer, x, source, dim, np.arange(*_span(node, _sizes(x)[dim])))


def _select_scatter(node: Any, importer: Any) -> Any:
    x, source = (importer.env[n] for n in node.args[:2])
    dim = node.args[2] % len(_sizes(x))
    source = importer.block_builder.emit(relax.op.expand_dims(source, dim))
    at = checked(node, np.array([node.args[3]]), _sizes(x)[dim])
    return _written(importer, x, source, dim, at)


CONVERT: dict[str, Callable[[Any, Any], Any]] = {
    "select.int": _select,
    "slice.Tensor": _slice,
    "index_select.default": _index_select,
    "take.default": _take,
    "embedding.default": _embedding,
    "gather.default": _gather,
    "scatter.src": _scatter,
    "scatter.value": _scatter,
    "index.Tensor": _index_tensor,
    "index_put.default": _index_put,
    "slice_scatter.default": _slice_scatter,
    "select_scatter.default": _select_scatter,
}
