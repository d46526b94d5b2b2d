"""ONNX nodes that TVM's importer takes and gets wrong without a word (0.27), refused by name."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import helper

from ..errors import ModelError
from .model import same_pixels


def check_resize(node: Any, constants: dict[str, np.ndarray], shapes: dict[str, list[int]]) -> None:
    """A Resize that TVM computes as ONNX says: it ignores antialias, and makes sizes of scales.

    Raises:
        ModelError: another one.
    """
    attrs = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    what = f"Resize (node {node.name or node.output[0]!r})"
    given, made = shapes.get(node.input[0]), shapes.get(node.output[0])
    if attrs.get("antialias") and (not (given and made) or np.any(np.less(made, given))):
        raise ModelError(
            f"{what} with antialias to a smaller map is not supported; export the model without it"
        )
    scales = constants.get(node.input[2]) if len(node.input) > 2 else None
    if scales is None or not scales.size or not given:
        return
    if axes := attrs.get("axes"):
        given = [given[axis] for axis in axes]
    mode = [attrs.get(k) for k in ("mode", "coordinate_transformation_mode", "nearest_mode")]
    nearest = mode == [b"nearest", b"asymmetric", b"floor"]
    if not all(same_pixels(n, float(f), nearest) for n, f in zip(given, scales, strict=True)):
        raise ModelError(
            f"{what} by the factors {scales.tolist()} of {given} is not supported: they give no "
            "whole sizes; export the model with sizes instead"
        )
