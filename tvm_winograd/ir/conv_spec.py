"""A relax conv2d call in our own words: its ConvSpec, and its weight as (k, c/groups, r, s)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..errors import UnsupportedError
from ..shapes import DTYPES, LAYOUTS, ConvSpec

KERNEL_AXES = "OIHW"  # our weight order: k, c/groups, r, s


def static_shape(expr: Any) -> tuple[int, ...]:
    """The shape of a relax expression as integers.

    Raises:
        UnsupportedError: a symbolic dimension, or no known shape.
    """
    from tvm import relax, tirx

    shape = getattr(expr.ty, "shape", None)
    if not isinstance(shape, relax.ShapeExpr):
        raise UnsupportedError(f"{expr}: its shape is unknown; import the model with static shapes")
    if not all(isinstance(dim, tirx.IntImm) for dim in shape.values):
        raise UnsupportedError(
            f"{expr} has the dynamic shape {list(shape.values)}; only static shapes are "
            "supported: fix the batch with --batch"
        )
    return tuple(int(dim) for dim in shape.values)


def conv2d_spec(call: Any) -> ConvSpec:
    """The ConvSpec of a relax.nn.conv2d call.

    Raises:
        UnsupportedError: dynamic shapes, unknown layouts or dtypes.
    """
    attrs = call.attrs
    data, weight = call.args
    layout = str(attrs.data_layout)
    dtype = str(data.ty.dtype)
    _check_layouts(attrs, layout, dtype)
    sizes = dict(zip(layout, static_shape(data), strict=True))
    weight_sizes = dict(zip(str(attrs.kernel_layout), static_shape(weight), strict=True))
    strides, dilations = _pair(attrs.strides), _pair(attrs.dilation)
    spec = ConvSpec(
        n=sizes["N"],
        c=sizes["C"],
        h=sizes["H"],
        w=sizes["W"],
        k=weight_sizes["O"],
        r=weight_sizes["H"],
        s=weight_sizes["W"],
        stride=strides,
        padding=_padding(attrs.padding),
        dilation=dilations,
        groups=int(attrs.groups),
        dtype=dtype,
        layout=layout,
    )
    return _evened(spec)


def _evened(spec: ConvSpec) -> ConvSpec:
    """The same convolution with equal strides and dilations, where one of two changes nothing:
    the stride of an axis with one output, the dilation of an axis with one tap."""
    for name, pair in (("stride", spec.strides), ("dilation", spec.dilations)):
        taps = {"stride": (spec.oh, spec.ow), "dilation": (spec.r, spec.s)}[name]
        for axis, other in ((0, 1), (1, 0)):
            if pair[0] != pair[1] and taps[axis] == 1:
                change: dict[str, Any] = {name: pair[other]}
                even = replace(spec, **change)
                if (even.oh, even.ow) == (spec.oh, spec.ow):
                    spec = even
                    break
    return spec


def weight_to_oihw(weight: np.ndarray, kernel_layout: str) -> np.ndarray:
    """`weight` in `kernel_layout` (e.g. "HWIO"), as a (k, c/groups, r, s) view."""
    return np.transpose(weight, [kernel_layout.index(axis) for axis in KERNEL_AXES])


def layer_names(weights: Sequence[str]) -> list[str]:
    """The names of a network's convolutions, in program order: each one's weight's, without
    ".weight"; "conv<i>" where it has none (""). A second user of a weight is called <name>_1."""
    taken: set[str] = set()
    return [
        unique_name(weight.removesuffix(".weight") or f"conv{i}", taken)
        for i, weight in enumerate(weights)
    ]


def unique_name(name: str, taken: set[str]) -> str:
    """`name`, or `name_1`, `name_2`, ... if taken; taken from now on."""
    candidate, count = name, 0
    while candidate in taken:
        count += 1
        candidate = f"{name}_{count}"
    taken.add(candidate)
    return candidate


def _check_layouts(attrs: Any, layout: str, dtype: str) -> None:
    kernel, out = str(attrs.kernel_layout), str(attrs.out_layout or layout)
    if layout not in LAYOUTS:
        raise UnsupportedError(f"conv2d data layout {layout!r}: supported are {', '.join(LAYOUTS)}")
    if out != layout:
        raise UnsupportedError(
            f"conv2d from layout {layout} to {out}: the output must keep the input's layout"
        )
    if sorted(kernel) != sorted(KERNEL_AXES):
        raise UnsupportedError(f"conv2d kernel layout {kernel!r}: an order of O, I, H, W is needed")
    if dtype not in DTYPES:
        raise UnsupportedError(f"conv2d on {dtype}: supported are {', '.join(DTYPES)}")
    out_dtype = str(attrs.out_dtype or "")
    if out_dtype not in ("", "void", dtype, DTYPES[dtype][1]):
        raise UnsupportedError(
            f"conv2d from {dtype} to {out_dtype}: {DTYPES[dtype][1]} is supported"
        )


def _pair(values: Any) -> tuple[int, int]:
    """relax's 1 or 2 (height, width) values as two."""
    first, *rest = (int(v) for v in values)
    return first, rest[0] if rest else first


def _padding(values: Any) -> tuple[int, int, int, int]:
    """relax's 1, 2 (height, width) or 4 (top, left, bottom, right) values as four."""
    pads = [int(v) for v in values]
    if len(pads) in (1, 2):
        pads = pads * (4 // len(pads))
    top, left, bottom, right = pads
    return top, left, bottom, right
