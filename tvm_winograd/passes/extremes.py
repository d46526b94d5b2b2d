"""Maxima, minima and their places where all elements are infinite.

TVM begins a maximum at the least finite number and its place at -1: of nothing but -infinity they
would be -3.4e38 and -1, which is no index.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from tvm import relax, te, tirx, topi

Reduce = Callable[..., Any]


def legalizations() -> dict[str, Any]:
    """For relax.transform.LegalizeOps: of each op (block builder, call) -> expression."""
    return {
        "relax.max": _legalize(_extreme, topi.max, -np.inf),
        "relax.min": _legalize(_extreme, topi.min, np.inf),
        "relax.argmax": _legalize(_place, topi.argmax),
        "relax.argmin": _legalize(_place, topi.argmin),
    }


def _legalize(compute: Callable[..., te.Tensor], reduce: Reduce, *rest: Any) -> Any:
    def legalize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        x, axis = call.args[0], call.attrs.axis
        dtype, hint = str(x.ty.dtype), call.op.name.rpartition(".")[2]

        def reduced(data: te.Tensor) -> te.Tensor:
            return reduce(data, axis, bool(call.attrs.keepdims))

        if dtype.startswith("float"):
            return builder.call_te(partial(compute, reduced, *rest), x, primfunc_name_hint=hint)
        return call.op.get_attr("FLegalize")(builder, call)

    return legalize


def _extreme(reduce: Reduce, none: float, x: te.Tensor) -> te.Tensor:
    """Of the halves, which are smaller than where TVM begins: that is left only of infinities."""
    begin = te.max_value(x.dtype) if none > 0 else te.min_value(x.dtype)
    half = te.compute(x.shape, lambda *i: x(*i) * tirx.const(0.5, x.dtype), "half")
    found = reduce(half)

    def extreme(*index: Any) -> Any:
        value = found(*index)
        infinite = tirx.const(none, x.dtype)
        return tirx.Select(value.equal(begin), infinite, value + value)

    return te.compute(found.shape, extreme, "extreme")


def _place(reduce: Reduce, x: te.Tensor) -> te.Tensor:
    """The first place, where TVM finds none."""
    found = reduce(x)
    first = tirx.const(0, found.dtype)
    return te.compute(found.shape, lambda *i: tirx.max(found(*i), first), "place")
