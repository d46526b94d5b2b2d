"""Arithmetic that TVM's operators do otherwise than every framework, for floats."""

from __future__ import annotations

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


def tiled(emit: Callable[[Any], Any], x: Any, repeats: Sequence[int]) -> Any:
    """x again and again along its axes, by indices that are constants.

    LLVM compiles the remainders of relax.tile's loops wrongly for some CPUs (emeraldrapids).
    """
    for axis, (size, times) in enumerate(zip(x.ty.shape.values, repeats, strict=True)):
        if times != 1:
            index = np.tile(np.arange(int(size)), times)
            x = emit(relax.op.take(x, relax.const(index, "int64"), axis))
    return x
