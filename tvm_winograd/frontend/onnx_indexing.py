"""ONNX's gathers and scatters: every index is checked or held inside, as of torch_indexing.py."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from .onnx_node import Node


def indices(node: Node, index: int, sizes: np.ndarray) -> Any:
    """An input of indices, counted from the front and inside `sizes`, which broadcasts to it.

    Raises:
        ModelError: a constant one lies outside.
    """
    known, value = node.known[index], node.inputs[index]
    if known is not None:
        if ((known < -sizes) | (known >= sizes)).any():
            raise node.refuse(
                f"its indices reach from {known.min()} to {known.max()} in dimensions of "
                f"{sizes.ravel().tolist()}",
                "correct the model",
            )
        return relax.const(np.where(known < 0, known + sizes, known).astype("int64"), "int64")
    if node.dtype(index) != "int64":
        value = node.emit(relax.op.astype(value, "int64"))
    zero = relax.const(0, "int64")
    last, count = (relax.const((sizes - n).astype("int64"), "int64") for n in (1, 0))
    from_end = node.emit(relax.op.add(value, count))
    value = node.emit(relax.op.where(node.emit(relax.op.less(value, zero)), from_end, value))
    return node.emit(relax.op.minimum(node.emit(relax.op.maximum(value, zero)), last))


def gather(node: Node) -> Any:
    if not all(isinstance(v, relax.Expr) and hasattr(v.ty, "shape") for v in node.inputs):
        return None  # of a shape
    axis = int(node.attrs.get("axis", 0)) % len(node.shape())
    index = indices(node, 1, np.array(node.shape()[axis]))
    if node.proto.op_type == "Gather":
        return relax.op.take(node.inputs[0], index, axis)
    return relax.op.gather_elements(node.inputs[0], index, axis)


def gather_nd(node: Node) -> Any:
    batch = int(node.attrs.get("batch_dims", 0))
    sizes = np.array(node.shape()[batch : batch + node.shape(1)[-1]])
    return relax.op.gather_nd(node.inputs[0], indices(node, 1, sizes), batch)


def scatter(node: Node) -> Any:
    reduction = node.text("reduction", "none")
    reduction = "update" if reduction == "none" else reduction
    x, updates = node.inputs[0], node.inputs[2]
    if node.proto.op_type == "ScatterND":
        sizes = np.array(node.shape()[: node.shape(1)[-1]])
        return relax.op.scatter_nd(x, indices(node, 1, sizes), updates, reduction)
    axis = int(node.attrs.get("axis", 0)) % len(node.shape())
    index = indices(node, 1, np.array(node.shape()[axis]))
    return relax.op.scatter_elements(x, index, updates, axis, reduction)
