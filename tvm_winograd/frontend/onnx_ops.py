"""ONNX operators that TVM's importer (0.27) lacks or gets wrong.

It reads Upsample's pixels at the middle, drops ConvTranspose's output_shape, takes a PRelu slope of
opset 6 along the last axis, answers LayerNormalization's statistics with zeros, and makes loop
nests of Pad, Clip and Tile, which no pass can look into.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax

from ..ir.recurrent import CELLS
from . import onnx_indexing as indexing
from . import sorting
from .arithmetic import by_zero, extreme, floor_mod, integer_power, roi_align, tiled
from .onnx_node import Node
from .onnx_recurrent import converter
from .onnx_resize import resize

_SEQUENCE = "only tensors are; export the model without sequences and optional values"
REFUSED = dict.fromkeys(
    (
        "SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert", "SequenceLength",
        "SequenceAt", "SplitToSequence", "ConcatFromSequence", "Optional", "OptionalHasElement",
        "OptionalGetElement",
    ),
    _SEQUENCE,
) | {
    "If": "its condition is computed from the inputs; export the model without it",
    "GridSample": "TVM reads its grid as another shape; export the model without it",
    "NonMaxSuppression": "the number of boxes depends on data; compute it from the outputs",
    "MaxUnpool": "TVM's importer reads its output shape wrongly; export the model without it",
}  # fmt: skip


def _prelu(node: Node) -> Any:
    x, slope, shape = node.inputs[0], node.inputs[1], node.shape()
    given = node.shape(1)
    if node.opset < 7 and len(given) == 1 and given[0] > 1:
        given = [given[0], *[1] * (len(shape) - 2)]  # a slope for each channel
    given = [1] * (len(shape) - len(given)) + given
    wide = [axis for axis, size in enumerate(given) if size > 1]
    if len(wide) <= 1:
        axis = wide[0] if wide else len(shape) - 1
        flat = node.emit(relax.op.reshape(slope, (given[axis],)))
        return relax.op.nn.prelu(x, flat, axis)
    slope = node.emit(relax.op.reshape(slope, given))
    below = node.emit(relax.op.less(x, relax.const(0, node.dtype())))
    return relax.op.where(below, node.emit(relax.op.multiply(x, slope)), x)


def _roi_align(node: Node) -> Any:
    if node.text("mode", "avg") != "avg":
        raise node.refuse("with mode=max ONNX takes the largest corner, TVM the largest sample")
    default = "half_pixel" if node.opset >= 16 else "output_half_pixel"
    mode = node.text("coordinate_transformation_mode", default)
    images = indexing.indices(node, 2, np.array(node.shape()[0]))
    images = node.emit(relax.op.astype(node.emit(relax.op.expand_dims(images, 1)), node.dtype(1)))
    size = int(node.attrs.get("output_height", 1)), int(node.attrs.get("output_width", 1))
    scale = float(node.attrs.get("spatial_scale", 1.0))
    samples = int(node.attrs.get("sampling_ratio", 0))
    x, boxes = node.inputs[0], node.inputs[1]
    return roi_align(node.emit, x, images, boxes, size, scale, samples, mode == "half_pixel")


def _dropout(node: Node) -> Any:
    """Nothing, and a mask of all."""
    training = node.constant(2)
    for name in ("ratio", "is_test"):
        node.attrs.get(name)
    if training is not None and bool(training.item()):
        raise node.refuse("it is in training mode", "export the model after .eval()")
    if len(node.proto.output) == 1:
        return node.inputs[0]
    dtype = "bool" if node.opset >= 10 else node.dtype()
    mask = node.emit(relax.op.full(node.shape(), relax.const(1, dtype), dtype))
    return relax.Tuple([node.inputs[0], mask])


def _mod(node: Node) -> Any:
    a, b = node.inputs
    if node.attrs.get("fmod", 0) or not node.dtype().startswith("float"):
        return None
    return floor_mod(node.emit, a, b)


def _pow(node: Node) -> Any:
    """The exponent may be of another type; the result has the base's."""
    x, exponent = node.inputs
    known = node.known[1]
    if not node.dtype().startswith("float"):
        if known is None or known.size != 1 or known.item() not in range(17):
            raise node.refuse("of integers it must be a power of 0 to 16, a constant")
        return integer_power(node.emit, x, int(known.item()))
    if node.dtype(1) == node.dtype():
        return None
    if known is not None:
        return relax.op.power(x, relax.const(known.astype(node.dtype())))
    return relax.op.power(x, node.emit(relax.op.astype(exponent, node.dtype())))


def _clip(node: Node) -> Any:
    """min(max(x, low), high); a bound that is missing or NaN does nothing."""
    x = node.inputs[0]
    if node.opset < 11:
        node.attrs.get("min")
        node.attrs.get("max")
        return None
    for index, op, none in ((1, relax.op.maximum, -np.inf), (2, relax.op.minimum, np.inf)):
        bound = node.inputs[index] if len(node.inputs) > index else None
        if bound is None:
            continue
        if node.shape(index):
            bound = node.emit(relax.op.reshape(bound, ()))
        if node.dtype().startswith("float"):
            nothing = relax.const(none, node.dtype())
            bound = node.emit(relax.op.where(node.emit(relax.op.isnan(bound)), nothing, bound))
        x = node.emit(op(x, bound))
    return x


def _pad(node: Node) -> Any:
    """Constants around a tensor, or its own values again, taken by index. Less than 0 cuts."""
    x, shape, mode = node.inputs[0], node.shape(), node.text("mode", "constant")
    if node.opset < 11:
        pads: Any = np.array(node.attrs["pads"])
        axes, value = None, node.attrs.get("value", 0.0)
    else:
        pads, axes = node.constant(1), node.constant(3)
        given = node.constant(2)
        value = given.item() if given is not None and given.size else 0
    where = [int(a) % len(shape) for a in (range(len(shape)) if axes is None else axes)]
    widths = dict(zip(where, pads.reshape(2, -1).T.tolist(), strict=True))
    if mode != "constant":
        for axis, (before, after) in widths.items():
            if before or after:
                x = node.emit(_again(node, x, axis, shape[axis], before, after, mode))
        return x
    cut = {a: [max(-w, 0) for w in pair] for a, pair in widths.items() if min(pair) < 0}
    if cut:
        ends = [shape[a] - after for a, (_, after) in cut.items()]
        begins = [before for before, _ in cut.values()]
        x = node.emit(relax.op.strided_slice(x, list(cut), begins, ends))
    flat = [max(w, 0) for axis in range(len(shape)) for w in widths.get(axis, (0, 0))]
    return relax.op.nn.pad(x, flat, "constant", float(value)) if any(flat) else x


def _again(node: Node, x: Any, axis: int, size: int, before: int, after: int, mode: str) -> Any:
    if mode not in ("reflect", "edge", "wrap"):
        raise node.refuse(f"mode {mode!r} is unknown")
    index = np.arange(size)[max(-before, 0) : size - max(-after, 0)]
    index = np.pad(index, (max(before, 0), max(after, 0)), mode)  # type: ignore[call-overload]
    return relax.op.take(x, relax.const(index, "int64"), axis)


def _tile(node: Node) -> Any:
    if node.opset < 6:
        raise node.refuse("versions before 6 tile one axis")
    repeats = node.constant(1)
    assert repeats is not None
    return tiled(node.emit, node.inputs[0], [int(n) for n in repeats])


def _space_to_depth(node: Node) -> Any:
    size, (n, c, h, w) = int(node.attrs["blocksize"]), node.shape()
    blocks = (n, c, h // size, size, w // size, size)
    x = node.emit(relax.op.reshape(node.inputs[0], blocks))
    orders = {"DCR": [0, 3, 5, 1, 2, 4], "CRD": [0, 1, 3, 5, 2, 4]}
    x = node.emit(relax.op.permute_dims(x, orders[node.text("mode", "DCR")]))
    return relax.op.reshape(x, (n, c * size * size, h // size, w // size))


def _batch_norm(node: Node) -> Any:
    if node.attrs.get("training_mode", 0):
        raise node.refuse("it is in training mode", "export the model after .eval()")
    return None


def _pool(node: Node) -> Any:
    if len(node.proto.output) > 1:
        raise node.refuse("TVM has no indices of a pooling", "use its first output alone")
    node.attrs.get("storage_order")  # of the indices
    return None


def _lp_normalization(node: Node) -> Any:
    """LpNormalization: x over its norm along an axis; 0 where that is 0."""
    x, axis = node.inputs[0], int(node.attrs.get("axis", -1))
    if int(node.attrs.get("p", 2)) == 1:
        norm = node.emit(relax.op.sum(node.emit(relax.op.abs(x)), axis, True))
    else:
        squares = node.emit(relax.op.multiply(x, x))
        norm = node.emit(relax.op.sqrt(node.emit(relax.op.sum(squares, axis, True))))
    zero = relax.const(0, node.dtype())
    quotient = node.emit(relax.op.divide(x, norm))
    return relax.op.where(node.emit(relax.op.equal(norm, zero)), zero, quotient)


def _layer_norm(node: Node) -> Any:
    """Its statistics too, where they are read: the mean and 1 / the standard deviation."""
    if len(node.proto.output) == 1:
        return None
    x, rank = node.inputs[0], len(node.shape())
    axes = list(range(int(node.attrs.get("axis", -1)) % rank, rank))
    epsilon = relax.const(float(node.attrs.get("epsilon", 1e-5)), node.dtype())
    mean = node.emit(relax.op.mean(x, axes, True))
    centred = node.emit(relax.op.subtract(x, mean))
    squares = node.emit(relax.op.multiply(centred, centred))
    variance = node.emit(relax.op.mean(squares, axes, True))
    inverse = node.emit(relax.op.rsqrt(node.emit(relax.op.add(variance, epsilon))))
    out = node.emit(
        relax.op.multiply(node.emit(relax.op.multiply(centred, inverse)), node.inputs[1])
    )
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        out = node.emit(relax.op.add(out, node.inputs[2]))
    return relax.Tuple([out, mean, inverse][: len(node.proto.output)])


def _top_k(node: Node) -> Any:
    axis = int(node.attrs.get("axis", -1)) % len(node.shape())
    node.attrs.get("sorted")  # they always are
    if node.opset < 10:
        count = int(node.attrs["k"])
    else:
        given = node.constant(1)
        assert given is not None
        count = int(given.item())
    _check_length(node, axis)
    largest = bool(node.attrs.get("largest", 1))
    return relax.Tuple(list(sorting.first(node.bb, node.inputs[0], axis, count, largest)))


def _running_sum(node: Node) -> Any:
    where = node.constant(1)
    assert where is not None
    axis = int(where.item()) % len(node.shape())
    _check_length(node, axis)
    exclusive, reverse = (bool(node.attrs.get(name, 0)) for name in ("exclusive", "reverse"))
    return sorting.running_sum(node.bb, node.inputs[0], axis, exclusive, reverse)


def _div(node: Node) -> Any:
    known = node.known[1]
    if known is None or known.size != 1 or known.dtype.kind != "f" or known.item():
        return None
    return by_zero(node.emit, node.inputs[0], float(known.item()))


def _truth_extreme(op: Callable[..., Any]) -> Callable[[Node], Any]:
    """ReduceMax and ReduceMin of truth values; TVM's own of others."""

    def convert(node: Node) -> Any:
        if node.dtype() != "bool":
            return None
        keep, nothing = (
            bool(node.attrs.get("keepdims", 1)),
            node.attrs.get("noop_with_empty_axes", 0),
        )
        axes = node.attrs.get("axes") if node.opset < 18 else node.constant(1)
        if axes is None or not len(axes):
            return node.inputs[0] if nothing else extreme(node.emit, op, node.inputs[0], None, keep)
        return extreme(node.emit, op, node.inputs[0], [int(a) for a in axes], keep)

    return convert


def _without_axes(each: Callable[[Node], Any]) -> Callable[[Node], Any]:
    """A reduction over no axis at all (noop_with_empty_axes) still does `each` to an element."""

    def convert(node: Node) -> Any:
        if node.opset < 18 or not node.attrs.get("noop_with_empty_axes", 0):
            return None
        axes = node.constant(1)
        return each(node) if axes is None or not axes.size else None

    return convert


def _slice(node: Node) -> Any:
    """Before version 10, where its bounds are attributes."""
    if node.opset >= 10:
        return None
    shape, starts, ends = node.shape(), node.attrs["starts"], node.attrs["ends"]
    axes = [int(a) % len(shape) for a in node.attrs.get("axes", range(len(starts)))]
    bounds = [
        slice(int(s), int(e)).indices(shape[a])[:2]
        for s, e, a in zip(starts, ends, axes, strict=True)
    ]
    return relax.op.strided_slice(node.inputs[0], axes, *map(list, zip(*bounds, strict=True)))


def _bit_shift(node: Node) -> Any:
    """By its width or more (C leaves that open) only the sign is left, to the right."""
    x, by = node.inputs
    kind, left = np.iinfo(node.dtype()), node.text("direction", "LEFT") == "LEFT"
    op = relax.op.left_shift if left else relax.op.right_shift
    zero, width, most = (relax.const(n, node.dtype(1)) for n in (0, kind.bits, kind.bits - 1))
    above = node.emit(relax.op.less(by, width))
    inside = node.emit(relax.op.logical_and(above, node.emit(relax.op.greater_equal(by, zero))))
    shifted = node.emit(op(x, node.emit(relax.op.where(inside, by, most))))
    if kind.min < 0 and not left:
        return shifted
    return relax.op.where(inside, shifted, relax.const(0, node.dtype()))


def _check_length(node: Node, axis: int) -> None:
    if why := sorting.too_long(node.inputs[0], axis):
        raise node.refuse(f"its axis has {why}", "compute it from the outputs")


CONVERT: dict[str, Callable[[Node], Any]] = {
    "Resize": resize,
    "Upsample": resize,
    "PRelu": _prelu,
    "RoiAlign": _roi_align,
    "Dropout": _dropout,
    "Mod": _mod,
    "Pow": _pow,
    "Clip": _clip,
    "Pad": _pad,
    "Tile": _tile,
    "SpaceToDepth": _space_to_depth,
    "BatchNormalization": _batch_norm,
    "MaxPool": _pool,
    "LpNormalization": _lp_normalization,
    "TopK": _top_k,
    "CumSum": _running_sum,
    "BitShift": _bit_shift,
    "Slice": _slice,
    **dict.fromkeys(("ReduceL1", "ReduceL2"), _without_axes(lambda n: relax.op.abs(n.inputs[0]))),
    "ReduceSumSquare": _without_axes(lambda n: relax.op.multiply(n.inputs[0], n.inputs[0])),
    "ReduceLogSum": _without_axes(lambda n: relax.op.log(n.inputs[0])),
    "Div": _div,
    "ReduceMax": _truth_extreme(relax.op.max),
    "ReduceMin": _truth_extreme(relax.op.min),
    **dict.fromkeys(("Gather", "GatherElements"), indexing.gather),
    "GatherND": indexing.gather_nd,
    **dict.fromkeys(("Scatter", "ScatterElements", "ScatterND"), indexing.scatter),
    "LayerNormalization": _layer_norm,
    **{cell: converter(cell) for cell in CELLS},
}
