"""Adaptive average pools whose windows differ in size, as sums over the largest window.

Relax bounds the sum of an output by that output's own window: loops whose extent is no constant,
which no rule of dlight's can schedule. Here every output sums as many terms, zeros behind its end.
"""

from __future__ import annotations

import math
from typing import Any

from tvm import relax, te, tirx

_SPATIAL = "DHW"
_OPS = tuple(f"relax.nn.adaptive_avg_pool{n}d" for n in (1, 2, 3))


def legalizations() -> dict[str, Any]:
    """For relax.transform.LegalizeOps: of each op (block builder, call) -> expression."""
    return {name: _legalize for name in _OPS}


def _legalize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    kept = call.op.get_attr("FLegalize")
    given, made = call.args[0].ty.shape, call.ty.shape
    at = [i for i, letter in enumerate(call.attrs.layout) if letter in _SPATIAL]
    sizes = [(given[i], made[i]) for i in at]
    if not all(isinstance(n, tirx.IntImm) for pair in sizes for n in pair):
        return kept(builder, call)
    sizes = [(int(n), int(outputs)) for n, outputs in sizes]
    if all(n % outputs == 0 for n, outputs in sizes):
        return kept(builder, call)
    return builder.call_te(_pool, call.args[0], at, sizes, primfunc_name_hint="adaptive_avg_pool")


def largest_window(n: int, outputs: int) -> int:
    """Inputs of the largest of `outputs` windows over `n` inputs."""
    return max(_end(i, n, outputs) - i * n // outputs for i in range(outputs))


def _end(i: Any, n: int, outputs: int) -> Any:
    return ((i + 1) * n + outputs - 1) // outputs


def _pool(x: te.Tensor, at: list[int], sizes: list[tuple[int, int]]) -> te.Tensor:
    """The mean over window i of `outputs`: inputs i n / outputs to (i + 1) n / outputs, rounded
    down and up, along each of the dimensions `at`."""
    shape = [*x.shape]
    for axis, (_, outputs) in zip(at, sizes, strict=True):
        shape[axis] = outputs
    taps = [te.reduce_axis((0, largest_window(*size)), "window") for size in sizes]

    def windows(index: Any) -> list[tuple[Any, Any]]:
        return [
            (index[a] * n // o, _end(index[a], n, o)) for a, (n, o) in zip(at, sizes, strict=True)
        ]

    def total(*index: Any) -> Any:
        place, inside = [*index], []
        for axis, tap, (start, end) in zip(at, taps, windows(index), strict=True):
            place[axis] = start + tap
            inside.append(start + tap < end)
        term = tirx.if_then_else(tirx.all(*inside), x(*place), tirx.const(0, x.dtype))
        return te.sum(term, taps)

    def mean(*index: Any) -> Any:
        count = math.prod(end - start for start, end in windows(index))
        return sums(*index) / count.astype(x.dtype)

    sums = te.compute(shape, total, "window_sum")
    return te.compute(shape, mean, "window_mean")
