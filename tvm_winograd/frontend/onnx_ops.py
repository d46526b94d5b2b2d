"""ONNX operators that TVM's importer (0.27) lacks or gets wrong.

It reads Upsample's pixels at the middle, drops ConvTranspose's output_shape, takes a PRelu slope of
opset 6 along the last axis, answers LayerNormalization's statistics with zeros, and makes loop
nests of Pad, Clip and Tile, which no pass can look into.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from ..errors import ModelError
from .arithmetic import floor_mod, tiled
from .model import same_pixels
from .resizing import Resize

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


@dataclass(frozen=True)
class Node:
    """A node that is converted: its inputs as relax expressions, None where left out."""

    what: str  # operator and name, for messages
    bb: Any
    inputs: Any
    attrs: Any
    opset: int
    known: Sequence[np.ndarray | None]  # values of the inputs that are constants
    proto: Any

    def emit(self, expr: Any) -> Any:
        return self.bb.emit(expr)

    def constant(self, index: int) -> np.ndarray | None:
        """An optional input that must be a constant; None if it is left out.

        Raises:
            ModelError: it is computed.
        """
        if index >= len(self.proto.input) or not self.proto.input[index]:
            return None
        value = self.known[index]
        if value is None:
            raise self.refuse(f"its input {self.proto.input[index]!r} is no constant")
        return value

    def text(self, name: str, default: str) -> str:
        value = self.attrs.get(name, default)
        return value.decode() if isinstance(value, bytes) else value

    def shape(self, index: int = 0) -> list[int]:
        return [int(dim) for dim in self.inputs[index].ty.shape.values]

    def dtype(self, index: int = 0) -> str:
        return str(self.inputs[index].ty.dtype)

    def refuse(self, why: str, do: str = "export the model without it") -> ModelError:
        return ModelError(f"{self.what} is not supported: {why}; {do}")


def _resize(node: Node) -> Any:
    """Resize and Upsample, nearest, linear or cubic, of any spatial axes."""
    x, shape = node.inputs[0], node.shape()
    sizes, factors = _sizes(node, shape)
    if node.text("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize":
        raise node.refuse("coordinates are taken from a region")
    if sizes == shape:
        return x
    rank = len(shape) - 2
    if rank not in (1, 2, 3) or sizes[:2] != shape[:2]:
        raise node.refuse(f"{shape} becomes {sizes}: up to three spatial axes may change")
    rule = _rule(node, shape, sizes, factors)
    return rule.along_all(node.emit, x, sizes[2:])


def _sizes(node: Node, shape: list[int]) -> tuple[list[int], list[float]]:
    """The output's shape, and the factors that the model gives (of sizes, their quotients)."""
    upsample = node.proto.op_type == "Upsample"
    axes = [int(a) % len(shape) for a in node.attrs.get("axes", range(len(shape)))]
    scales: np.ndarray | None
    sizes: np.ndarray | None
    if upsample and node.opset < 9:
        scales, sizes = np.array(node.attrs["scales"]), None
    elif upsample or node.opset < 11:
        scales, sizes = node.constant(1), None
    else:
        scales, sizes = node.constant(2), node.constant(3)
    out, factors = list(shape), [1.0] * len(shape)
    if sizes is not None and sizes.size:
        policy = node.text("keep_aspect_ratio_policy", "stretch")
        wanted = _kept_ratio(policy, [shape[a] for a in axes], sizes.tolist())
        for axis, size in zip(axes, wanted, strict=True):
            out[axis], factors[axis] = int(size), size / shape[axis]
    elif scales is not None and scales.size:
        for axis, scale in zip(axes, scales.tolist(), strict=True):
            out[axis], factors[axis] = math.floor(shape[axis] * scale + 1e-6), scale
    else:
        raise node.refuse("it has neither scales nor sizes")
    return out, factors


def _kept_ratio(policy: str, shape: list[int], sizes: list[int]) -> list[int]:
    """The sizes that a Resize-18 makes of those it is asked for."""
    if policy == "stretch":
        return sizes
    pick = min if policy == "not_larger" else max
    scale = pick(size / given for size, given in zip(sizes, shape, strict=True))
    return [math.floor(scale * given + 0.5) for given in shape]


def _rule(node: Node, shape: list[int], sizes: list[int], factors: list[float]) -> Resize:
    """Raises:
    ModelError: TVM reads other pixels than ONNX says.
    """
    mode = node.text("mode", "nearest")
    coordinates = node.text("coordinate_transformation_mode", "half_pixel")
    rounding = node.text("nearest_mode", "round_prefer_floor")
    smaller = any(n > s for n, s in zip(shape, sizes, strict=True))
    if node.proto.op_type == "Upsample" or node.opset < 11:  # they have no such attributes
        coordinates, rounding = "asymmetric", "floor"
        if smaller and mode == "nearest":
            raise node.refuse("to a smaller map, nearest, versions before 11 say no pixel")
    if node.attrs.get("antialias", 0) and smaller:
        raise node.refuse("TVM has no antialias, which a smaller map needs")
    nearest = (mode, coordinates, rounding) == ("nearest", "asymmetric", "floor")
    pairs = list(zip(shape, factors, strict=True))
    if not all(same_pixels(n, f, nearest) for n, f in pairs):
        raise node.refuse(
            f"by the factors {[round(f, 6) for f in factors]} of {shape} they give no whole sizes",
            "export the model with sizes instead",
        )
    if coordinates == "half_pixel_symmetric":  # the same where the sizes are whole
        coordinates = "half_pixel"
    if mode == "cubic" and coordinates == "tf_half_pixel_for_nn":
        raise node.refuse("tf_half_pixel_for_nn is for nearest")
    method = {"nearest": "nearest_neighbor"}.get(mode, mode)
    alpha = float(node.attrs.get("cubic_coeff_a", -0.75))
    exclude = bool(node.attrs.get("exclude_outside", 0))
    node.attrs.get("extrapolation_value")  # of tf_crop_and_resize alone
    return Resize(method, coordinates, rounding if method != mode else "", alpha, exclude)


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
    return None


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
    if node.dtype(1) == node.dtype():
        return None
    if not node.dtype().startswith("float"):
        raise node.refuse("its base is an integer and its exponent is not of the same type")
    known = node.known[1]
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


def _indices(node: Node, index: int, sizes: np.ndarray) -> Any:
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


def _gather(node: Node) -> Any:
    if not all(isinstance(v, relax.Expr) and hasattr(v.ty, "shape") for v in node.inputs):
        return None  # of a shape
    axis = int(node.attrs.get("axis", 0)) % len(node.shape())
    index = _indices(node, 1, np.array(node.shape()[axis]))
    if node.proto.op_type == "Gather":
        return relax.op.take(node.inputs[0], index, axis)
    return relax.op.gather_elements(node.inputs[0], index, axis)


def _gather_nd(node: Node) -> Any:
    batch = int(node.attrs.get("batch_dims", 0))
    sizes = np.array(node.shape()[batch : batch + node.shape(1)[-1]])
    return relax.op.gather_nd(node.inputs[0], _indices(node, 1, sizes), batch)


def _scatter(node: Node) -> Any:
    reduction = node.text("reduction", "none")
    reduction = "update" if reduction == "none" else reduction
    x, updates = node.inputs[0], node.inputs[2]
    if node.proto.op_type == "ScatterND":
        sizes = np.array(node.shape()[: node.shape(1)[-1]])
        return relax.op.scatter_nd(x, _indices(node, 1, sizes), updates, reduction)
    axis = int(node.attrs.get("axis", 0)) % len(node.shape())
    index = _indices(node, 1, np.array(node.shape()[axis]))
    return relax.op.scatter_elements(x, index, updates, axis, reduction)


def _top_k(node: Node) -> Any:
    raise node.refuse("no kernel can be made for a sort", "compute it from the outputs")


CONVERT: dict[str, Callable[[Node], Any]] = {
    "Resize": _resize,
    "Upsample": _resize,
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
    **dict.fromkeys(("Gather", "GatherElements"), _gather),
    "GatherND": _gather_nd,
    **dict.fromkeys(("Scatter", "ScatterElements", "ScatterND"), _scatter),
    "LayerNormalization": _layer_norm,
}
