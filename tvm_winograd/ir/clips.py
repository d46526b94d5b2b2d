"""A clip, min(max(x, low), high), in the relax operators that stand for one."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any

import tvm
from tvm import relax, tirx

from .bindings import op_name

OPERATORS = frozenset(
    f"relax.{name}" for name in ("nn.relu", "nn.relu6", "clip", "minimum", "maximum")
)
_NUMBERS = (tirx.IntImm, tirx.FloatImm)


@dataclass(frozen=True)
class Clip:
    """min(max(value, low), high), low <= high, of floating values; infinite where unbounded."""

    value: relax.Expr
    low: float
    high: float

    def call(self) -> relax.Call:
        """It as one operator."""
        dtype = str(self.value.ty.dtype)
        if self.high == inf and self.low == 0:
            return relax.op.nn.relu(self.value)
        if self.high == inf:
            return relax.op.maximum(self.value, relax.const(self.low, dtype))
        if self.low == -inf:
            return relax.op.minimum(self.value, relax.const(self.high, dtype))
        return relax.op.clip(self.value, self.low, self.high)

    def behind(self, first: Clip) -> Clip:
        """This clip of what `first` gives, as one."""
        low, high = (min(max(v, self.low), self.high) for v in (first.low, first.high))
        return Clip(first.value, low, high)


def clip_of(expr: Any) -> Clip | None:
    """The clip that an expression is, if it is one operator with constant bounds."""
    name = op_name(expr)
    if name == "relax.nn.relu":
        return _clip(expr.args[0], 0.0, inf)
    if name == "relax.nn.relu6":
        return _clip(expr.args[0], 0.0, 6.0)
    if name == "relax.clip" and all(isinstance(a, _NUMBERS) for a in expr.args[1:]):
        return _clip(expr.args[0], *(float(a.value) for a in expr.args[1:]))
    if name in ("relax.minimum", "relax.maximum"):
        value, bound = expr.args if scalar(expr.args[0]) is None else reversed(expr.args)
        return bounded(name, value, bound, expr)
    return None


def bounded(name: str, value: Any, bound: Any, result: Any) -> Clip | None:
    """relax.minimum or relax.maximum of a value and one number, which leaves its shape alone."""
    limit = scalar(bound)
    if limit is None or value.ty.ndim != result.ty.ndim:
        return None
    return _clip(value, -inf, limit) if name == "relax.minimum" else _clip(value, limit, inf)


def _clip(value: Any, low: float, high: float) -> Clip | None:
    floating = isinstance(value, relax.Var) and "float" in str(value.ty.dtype)
    return Clip(value, low, high) if floating and low <= high else None


def scalar(expr: Any) -> float | None:
    """The one value of a constant."""
    if not isinstance(expr, tvm.ir.GenericConst):
        return None
    array = expr.value.numpy()
    return float(array.item()) if array.size == 1 else None
