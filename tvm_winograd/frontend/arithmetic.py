"""Arithmetic that TVM's operators do otherwise than every framework, for floats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax


def floor_mod(emit: Callable[[Any], Any], a: Any, b: Any) -> Any:
    """a - floor(a / b) b, the sign of b, also where a / b is not finite: -1 of inf is inf."""
    zero = relax.const(0, str(b.ty.dtype))
    rest = emit(relax.op.mod(a, b))
    other = emit(relax.op.not_equal(emit(relax.op.less(rest, zero)), emit(relax.op.less(b, zero))))
    some = emit(relax.op.not_equal(rest, zero))
    turned = emit(relax.op.logical_and(some, other))
    return emit(relax.op.where(turned, emit(relax.op.add(rest, b)), rest))
