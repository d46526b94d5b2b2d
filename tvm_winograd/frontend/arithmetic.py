"""Arithmetic that TVM's operators do otherwise than every framework, for floats."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax


def floor_mod(emit: Callable[[Any], Any], a: Any, b: Any) -> Any:
    """a - floor(a / b) b, the sign of b, also where a / b is not finite: -1 of inf is inf."""
    rest = emit(relax.op.mod(a, b))
    signs = emit(relax.op.multiply(emit(relax.op.sign(rest)), emit(relax.op.sign(b))))
    turned = emit(relax.op.less(signs, relax.const(0, str(b.ty.dtype))))
    return emit(relax.op.where(turned, emit(relax.op.add(rest, b)), rest))


def by_zero(emit: Callable[[Any], Any], x: Any, zero: float) -> Any:
    """x / zero, of one that is a constant: TVM refuses to simplify that."""
    return emit(relax.op.multiply(x, relax.const(math.copysign(math.inf, zero), str(x.ty.dtype))))


def extreme(
    emit: Callable[[Any], Any], op: Callable[..., Any], x: Any, axes: Any, keep: Any
) -> Any:
    """op, relax's max or min, of truth values too: TVM has no least one to begin at."""
    if str(x.ty.dtype) != "bool":
        return emit(op(x, axes, keep))
    return emit(relax.op.astype(emit(op(emit(relax.op.astype(x, "int8")), axes, keep)), "bool"))


def integer_power(emit: Callable[[Any], Any], x: Any, exponent: int) -> Any:
    """x times itself; TVM has no power of integers."""
    power = emit(relax.op.ones_like(x)) if exponent == 0 else x
    for _ in range(exponent - 1):
        power = emit(relax.op.multiply(power, x))
    return power


def tiled(emit: Callable[[Any], Any], x: Any, repeats: Sequence[int]) -> Any:
    """x again and again along its axes, by indices that are constants.

    LLVM compiles the remainders of relax.tile's loops wrongly for some CPUs (emeraldrapids).
    """
    for axis, (size, times) in enumerate(zip(x.ty.shape.values, repeats, strict=True)):
        if times != 1:
            index = np.tile(np.arange(int(size)), times)
            x = emit(relax.op.take(x, relax.const(index, "int64"), axis))
    return x


def roi_align(
    emit: Callable[[Any], Any],
    x: Any,
    images: Any,
    boxes: Any,
    size: tuple[int, int],
    scale: float,
    samples: int,
    aligned: bool,
) -> Any:
    """Means of samples in the cells of boxes (left, top, right, bottom), pixels of x over `scale`.

    Half a pixel is taken off behind the scale; TVM's importers take it off before, which is another
    place where the scale is not 1.
    """
    dtype = str(boxes.ty.dtype)
    if scale != 1:
        boxes = emit(relax.op.multiply(boxes, relax.const(scale, dtype)))
    if aligned:
        boxes = emit(relax.op.subtract(boxes, relax.const(0.5, dtype)))
    rois = emit(relax.op.concat([images, boxes], axis=1))
    return emit(
        relax.op.vision.roi_align(
            x,
            rois,
            pooled_size=size,
            spatial_scale=1.0,
            sample_ratio=samples,
            aligned=aligned,
            layout="NCHW",
            mode="avg",
        )
    )
