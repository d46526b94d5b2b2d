"""Operators of torch that TVM's importer lacks or gets wrong without a word (0.27).

It drops the factors of add(x, y, alpha=), selu and avg_pool2d(divisor_override=), takes the pixel
nearest to the centre where torch takes the one to the left, and rounds scale factors to a size.
A function takes (fx node, importer).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import ModelError
from .model import same_pixels
from .resizing import NEAREST, Resize, torch_cubic, torch_linear

Convert = Callable[[Any, Any], Any]


def convert_map() -> dict[str, Convert]:
    """For from_exported_program(custom_convert_map=)."""
    from tvm import relax

    op = relax.op
    return {
        "add.Tensor": _scaled(op.add),
        "sub.Tensor": _scaled(op.subtract),
        "elu.default": _elu,
        "avg_pool2d.default": _avg_pool2d,
        "upsample_nearest2d.vec": _nearest,
        "upsample_bilinear2d.vec": _interpolated(torch_linear),
        "upsample_bicubic2d.vec": _interpolated(torch_cubic),
        "_upsample_bilinear2d_aa.default": _antialiased,
        "grid_sampler_2d.default": _refused("grid_sample", "TVM reads its grid as another shape"),
        "max.dim": _extreme(op.max, op.argmax),
        "min.dim": _extreme(op.min, op.argmin),
        "amax.default": _reduced(op.max),
        "amin.default": _reduced(op.min),
        "prod.dim_int": _product,
        "adaptive_max_pool2d.default": _adaptive_max_pool2d,
        **dict.fromkeys(
            ("clamp.default", "clamp.Tensor", "clip.default", "hardtanh.default"), _clamp
        ),
        "clamp_min.default": lambda node, importer: _clamp(node, importer, upper=False),
        "clamp_max.default": lambda node, importer: _clamp(node, importer, lower=False),
        "native_group_norm.default": _group_norm,
        **dict.fromkeys(("div.Tensor_mode", "div.Scalar_mode", "floor_divide.default"), _divide),
        "div.Tensor": _divide,
        "exp2.default": _power_of_2,
        **dict.fromkeys(("pow.Tensor_Scalar", "pow.Scalar", "pow.Tensor_Tensor"), _power),
        "roi_align.default": _roi_align,
        **dict.fromkeys(("repeat.default", "tile.default"), _repeat),
        **dict.fromkeys(("remainder.Tensor", "remainder.Scalar"), _remainder),
    }


def argument(node: Any, index: int, name: str, default: Any = None) -> Any:
    return node.args[index] if len(node.args) > index else node.kwargs.get(name, default)


def refuse(what: str, why: str, do: str = "export the model without it") -> ModelError:
    return ModelError(f"{what} is not supported: {why}; {do}")


def _refused(what: str, why: str) -> Convert:
    def convert(node: Any, importer: Any) -> Any:
        raise refuse(f"{what} (node {node.name!r})", why)

    return convert


def _scaled(function: Any) -> Convert:
    """add and sub: the second argument times alpha."""

    def convert(node: Any, importer: Any) -> Any:
        from tvm import relax

        plain = importer._binary_op(function, None)
        if (alpha := node.kwargs.get("alpha", 1)) == 1:
            return plain(node)
        x, y = importer.retrieve_args(node)
        if isinstance(y, int | float):
            y = relax.const(y, x.ty.dtype)
        if isinstance(x, int | float):
            x = relax.const(x, y.ty.dtype)
        if y.ty.dtype != x.ty.dtype:
            y = importer.block_builder.emit(relax.op.astype(y, x.ty.dtype))
        factor = relax.const(alpha, y.ty.dtype)
        return importer.block_builder.emit(
            function(x, importer.block_builder.emit(relax.op.multiply(y, factor)))
        )

    return convert


def _clamp(node: Any, importer: Any, lower: bool = True, upper: bool = True) -> Any:
    """min(max(x, low), high), in this order: where low > high all of it is high. A NaN stays."""
    from tvm import relax

    x, emit = importer.env[node.args[0]], importer.block_builder.emit
    low = argument(node, 1, "min", None) if lower else None
    high = argument(node, 2 if lower else 1, "max", None) if upper else None
    if str(node.target).endswith("hardtanh.default"):
        low, high = argument(node, 1, "min_val", -1.0), argument(node, 2, "max_val", 1.0)
    if isinstance(low, int | float) and isinstance(high, int | float) and low <= high:
        return emit(relax.op.clip(x, low, high))
    for bound, op in ((low, relax.op.maximum), (high, relax.op.minimum)):
        if bound is not None:
            x = emit(op(x, typed(bound, str(x.ty.dtype), importer)))
    return x


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _group_norm(node: Any, importer: Any) -> Any:
    """Its scale and shift may be missing; only the first of three results is made."""
    import numpy as np
    from tvm import relax

    x = importer.env[node.args[0]]
    dtype, channels, rank = str(x.ty.dtype), int(x.ty.shape[1]), len(x.ty.shape)
    gamma, beta = (
        relax.const(np.full(channels, fill, dtype)) if given is None else importer.env[given]
        for given, fill in zip(node.args[1:3], (1, 0), strict=True)
    )
    axes = list(range(2, rank))
    out = relax.op.nn.group_norm(x, gamma, beta, node.args[6], 1, axes, node.args[7])
    return importer.block_builder.emit(relax.Tuple([importer.block_builder.emit(out)]))


def _divide(node: Any, importer: Any) -> Any:
    """True division of integers gives floats; floor and trunc of floats stay floats."""
    import torch
    from tvm import relax

    from .arithmetic import by_zero

    emit, noted = importer.block_builder.emit, node.meta["val"]
    mode = argument(node, 2, "rounding_mode", None)
    if "floor_divide" in str(node.target):
        mode = "floor"
    dtype = str(importer._convert_data_type(noted.dtype))
    a, b = (typed(arg, dtype, importer) for arg in node.args[:2])
    if mode is not None and not noted.dtype.is_floating_point:
        if mode == "floor":
            return emit(relax.op.floor_divide(a, b))
        raise refuse(f"div of integers, truncated (node {node.name!r})", "TVM has none")
    if isinstance(divisor := node.args[1], int | float) and not divisor:
        return by_zero(emit, a, divisor)
    out = emit(relax.op.divide(a, b))
    if mode is None:
        return out
    # floor(a / b) is not torch's floor division where a / b rounds up to a whole number
    if mode == "floor" and noted.dtype in (torch.float32, torch.float64):
        rest = emit(relax.op.floor_mod(a, b))
        exact = emit(relax.op.divide(emit(relax.op.subtract(a, rest)), b))
        return emit(relax.op.round(exact))
    return emit(relax.op.trunc(out))


def typed(value: Any, dtype: str, importer: Any) -> Any:
    from tvm import relax

    if _is_number(value):
        return relax.const(value, dtype)
    x = importer.env[value]
    if str(x.ty.dtype) == dtype:
        return x
    return importer.block_builder.emit(relax.op.astype(x, dtype))


def _power(node: Any, importer: Any) -> Any:
    """Of floats TVM's own; integers are multiplied."""
    from tvm import relax

    from .arithmetic import integer_power

    noted, (base, exponent) = node.meta["val"].dtype, node.args[:2]
    dtype = str(importer._convert_data_type(noted))
    if noted.is_floating_point:
        x, y = (typed(value, dtype, importer) for value in (base, exponent))
        return importer.block_builder.emit(relax.op.power(x, y))
    if not isinstance(exponent, int) or exponent not in range(17):
        what = f"pow of integers by {exponent} (node {node.name!r})"
        raise refuse(what, "a number of 0 to 16 is needed")
    return integer_power(importer.block_builder.emit, typed(base, dtype, importer), exponent)


def _roi_align(node: Any, importer: Any) -> Any:
    from tvm import relax

    from .arithmetic import roi_align

    emit, (x, rois) = importer.block_builder.emit, (importer.env[n] for n in node.args[:2])
    images, boxes = (
        emit(relax.op.strided_slice(rois, [1], [first], [last])) for first, last in ((0, 1), (1, 5))
    )
    scale, height, width, samples, aligned = node.args[2:7]
    return roi_align(emit, x, images, boxes, (height, width), scale, samples, aligned)


def _repeat(node: Any, importer: Any) -> Any:
    from tvm import relax

    from .arithmetic import tiled

    x, emit, repeats = importer.env[node.args[0]], importer.block_builder.emit, list(node.args[1])
    shape = [int(dim) for dim in x.ty.shape.values]
    longer = max(len(shape), len(repeats))
    repeats = [1] * (longer - len(repeats)) + repeats
    if longer > len(shape):
        x = emit(relax.op.reshape(x, [1] * (longer - len(shape)) + shape))
    return tiled(emit, x, repeats)


def _remainder(node: Any, importer: Any) -> Any:
    """The sign of the divisor."""
    from .arithmetic import floor_mod

    noted = node.meta["val"].dtype
    if not noted.is_floating_point:
        return importer._binary_op(_relax().op.floor_mod, None)(node)
    a, b = (typed(arg, str(importer._convert_data_type(noted)), importer) for arg in node.args[:2])
    return floor_mod(importer.block_builder.emit, a, b)


def _relax() -> Any:
    from tvm import relax

    return relax


def _power_of_2(node: Any, importer: Any) -> Any:
    from tvm import relax

    x = importer.env[node.args[0]]
    return importer.block_builder.emit(relax.op.power(relax.const(2, str(x.ty.dtype)), x))


def _elu(node: Any, importer: Any) -> Any:
    from tvm import relax

    scale, inner = argument(node, 2, "scale", 1), argument(node, 3, "input_scale", 1)
    if inner != 1:
        raise refuse(f"elu with input_scale={inner} (node {node.name!r})", "TVM has none")
    out = importer._elu(node)
    if scale == 1:
        return out
    factor = relax.const(float(scale), out.ty.dtype)
    return importer.block_builder.emit(relax.op.multiply(out, factor))


def _avg_pool2d(node: Any, importer: Any) -> Any:
    if (divisor := argument(node, 6, "divisor_override", None)) is not None:
        what = f"avg_pool2d with divisor_override={divisor} (node {node.name!r})"
        raise refuse(what, "TVM divides by the window")
    return importer._avg_pool2d(node)


def _nearest(node: Any, importer: Any) -> Any:
    factors = argument(node, 2, "scale_factors", None)
    size = _output_size(node, importer, factors, nearest=True)
    return NEAREST.resized(importer.block_builder.emit, importer.env[node.args[0]], size)


def _interpolated(rule: Callable[[bool], Resize]) -> Convert:
    """bilinear and bicubic; the third argument is align_corners."""

    def convert(node: Any, importer: Any) -> Any:
        size = _output_size(node, importer, argument(node, 3, "scale_factors", None))
        x = importer.env[node.args[0]]
        corners = bool(argument(node, 2, "align_corners", False))
        return rule(corners).resized(importer.block_builder.emit, x, size)

    return convert


def _antialiased(node: Any, importer: Any) -> Any:
    size = _output_size(node, importer, None)
    if any(out < given for out, given in zip(size, _map_size(node, importer), strict=True)):
        what = f"interpolate(antialias=True) to a smaller map (node {node.name!r})"
        raise refuse(what, "TVM has no antialiasing")
    return _interpolated(torch_linear)(node, importer)


def _map_size(node: Any, importer: Any) -> list[int]:
    return [int(n) for n in [*importer.env[node.args[0]].ty.shape][2:]]


def _output_size(node: Any, importer: Any, factors: Any, nearest: bool = False) -> tuple[int, ...]:
    """Of a resize; torch reads pixels 1 / factor apart, TVM input / output."""
    if size := node.args[1]:
        return tuple(size)
    given = _map_size(node, importer)
    if not all(same_pixels(n, f, nearest) for n, f in zip(given, factors, strict=True)):
        what = f"interpolate(scale_factor={list(factors)}) (node {node.name!r})"
        why = f"{given} pixels do not become whole ones"
        raise refuse(what, why, "give it size=, or recompute_scale_factor=True")
    return tuple(int(n * f) for n, f in zip(given, factors, strict=True))


def _extreme(values: Any, indices: Any) -> Convert:
    """(values, indices) along one axis; the importer would sort all of it."""

    def convert(node: Any, importer: Any) -> Any:
        from tvm import relax

        x, axis, keep = importer.env[node.args[0]], node.args[1], argument(node, 2, "keepdim", 0)
        emit = importer.block_builder.emit
        fields = [emit(values(x, axis, bool(keep))), emit(indices(x, axis, bool(keep)))]
        return emit(relax.Tuple(fields))

    return convert


def _reduced(function: Any) -> Convert:
    def convert(node: Any, importer: Any) -> Any:
        from .arithmetic import extreme

        axes = argument(node, 1, "dim", None) or None  # all
        keep = bool(argument(node, 2, "keepdim", False))
        x = importer.env[node.args[0]]
        return extreme(importer.block_builder.emit, function, x, axes, keep)

    return convert


def _product(node: Any, importer: Any) -> Any:
    from tvm import relax

    x = typed(node.args[0], str(importer._convert_data_type(node.meta["val"].dtype)), importer)
    keep = bool(argument(node, 2, "keepdim", False))
    return importer.block_builder.emit(relax.op.prod(x, [node.args[1]], keep))


def _adaptive_max_pool2d(node: Any, importer: Any) -> Any:
    """Over windows of one size, without the indices."""
    from tvm import relax

    given, made = _map_size(node, importer), list(node.args[1])
    uneven = any(n % out for n, out in zip(given, made, strict=True))
    if uneven or any(user.args[1] != 0 for user in node.users):
        what = f"adaptive_max_pool2d from {given} to {made} (node {node.name!r})"
        raise refuse(what, "windows of one size are, and no indices")
    window = [n // out for n, out in zip(given, made, strict=True)]
    pooled = importer.block_builder.emit(
        relax.op.nn.max_pool2d(importer.env[node.args[0]], window, window)
    )
    return importer.block_builder.emit(relax.Tuple([pooled]))
