"""ONNX's Resize and Upsample of every version: which sizes they give, which pixels they read."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .model import same_pixels
from .onnx_node import Node
from .resizing import Resize


def resize(node: Node) -> Any:
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
        for axis, (size, factor) in zip(axes, wanted, strict=True):
            out[axis], factors[axis] = int(size), factor
    elif scales is not None and scales.size:
        for axis, scale in zip(axes, scales.tolist(), strict=True):
            out[axis], factors[axis] = math.floor(shape[axis] * scale + 1e-6), scale
    else:
        raise node.refuse("it has neither scales nor sizes")
    return out, factors


def _kept_ratio(policy: str, shape: list[int], sizes: list[int]) -> list[tuple[int, float]]:
    """(size, factor) of each axis that a Resize-18 makes of the sizes it is asked for.

    With a policy the factor is one, though the sizes are rounded: pixels are 1 / factor apart.
    """
    factors = [size / given for size, given in zip(sizes, shape, strict=True)]
    if policy == "stretch":
        return list(zip(sizes, factors, strict=True))
    factor = min(factors) if policy == "not_larger" else max(factors)
    return [(math.floor(factor * given + 0.5), factor) for given in shape]


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
