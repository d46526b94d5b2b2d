"""Shared by all algorithms: tile-shaped layouts, access by layout, padding, epilogue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from tvm import te, tirx
from tvm.relax import analysis

from ..shapes import ConvSpec, Epilogue

Expr = Any  # a tirx.PrimExpr; TVM ships no useful types


def mixed_radix(tile: Sequence[int], index: Sequence[Expr]) -> Expr:
    """Flat position of `index` in a row-major block of shape `tile`."""
    flat: Expr = 0
    for extent, i in zip(tile, index, strict=True):
        flat = flat * extent + i
    return flat


def unmix(tile: Sequence[int], flat: Expr) -> list[Expr]:
    """The inverse of `mixed_radix`."""
    out: list[Expr] = []
    for position, extent in enumerate(tile):
        inner = product(tile[position + 1 :])
        out.append(flat // inner % extent if position else flat // inner)
    return out


def product(values: Sequence[int]) -> int:
    out = 1
    for v in values:
        out *= v
    return out


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def input_reach(spec: ConvSpec) -> int:
    """Elements of the input up to the last that an index may name, were its padding in memory."""
    top, left, bottom, right = spec.padding
    return spec.n * spec.c * (spec.h + top + bottom) * (spec.w + left + right)


def too_large(spec: ConvSpec) -> str | None:
    """None, or why 32-bit indices do not reach all of the input or output."""
    if max(input_reach(spec), product(spec.output_shape)) >= 2**31:
        return "a tensor has 2^31 elements or more; indices are 32-bit"
    return None


def linear(row: Sequence[Fraction], term: Callable[[int], Expr], dtype: str) -> Expr:
    """sum_j row[j] * term(j): zero terms dropped, +-1 without a multiply.

    Positive coefficients come first: a leading negative one costs a real subtraction from zero.
    """
    order = sorted((j for j, c in enumerate(row) if c), key=lambda j: row[j] < 0)
    out: Expr = None
    for j in order:
        size = abs(row[j])
        value = term(j) if size == 1 else term(j) * tirx.const(float(size), dtype)
        if out is None:
            out = value if row[j] > 0 else tirx.const(0.0, dtype) - value
        else:
            out = out + value if row[j] > 0 else out - value
    return tirx.const(0.0, dtype) if out is None else out


def even_odd(row: Sequence[Fraction], term: Callable[[int], Expr], dtype: str) -> Expr:
    """`linear` as even + c * odd terms, so that rows of points p and -p share both parts.

    In B^T they differ in the sign of c only: 12 operations for six rows of F(4, 3) instead of 18.
    """
    even, odd = (
        [c if j % 2 == side else Fraction(0) for j, c in enumerate(row)] for side in (0, 1)
    )
    if min(sum(map(bool, even)), sum(map(bool, odd))) < 2:
        return linear(row, term, dtype)
    c = next(value for value in reversed(odd) if value)
    parts = [linear(even, term, dtype), linear([value / c for value in odd], term, dtype)]
    return linear([Fraction(1), c], lambda j: parts[j], dtype)


def select_row(
    rows: Sequence[Sequence[Fraction]],
    i: Expr,
    term: Callable,
    dtype: str,
    choose: Callable[[Expr, Expr, Expr], Expr] = tirx.Select,
    combine: Callable[[Sequence[Fraction], Callable, str], Expr] = linear,
) -> Expr:
    """combine(rows[i], term) for a loop variable i: vanishes to one row once i is unrolled.

    Args:
        choose: tirx.if_then_else if i is not unrolled. A Select runs the loads of every branch,
            and TVM simplifies the indices of each as if its own condition held: out of bounds.
    """
    out = combine(rows[-1], term, dtype)
    for a in range(len(rows) - 2, -1, -1):
        out = choose(i == a, combine(rows[a], term, dtype), out)
    return out


def read(data: te.Tensor, spec: ConvSpec, n: Expr, c: Expr, h: Expr, w: Expr) -> Expr:
    """data[n, c, h, w] in the spec's layout."""
    axes = {"N": n, "C": c, "H": h, "W": w}
    return data[tuple(axes[a] for a in spec.layout)]


def padded(
    data: te.Tensor, spec: ConvSpec, n: Expr, c: Expr, h: Expr, w: Expr, *guards: Expr
) -> Expr:
    """data at (h, w) of the map in the storage dtype, 0 outside it or where a guard fails.

    A cast belongs into the consumer: here it would wait for a load that should stay in flight.
    """
    inside = tirx.all(h >= 0, h < spec.h, w >= 0, w < spec.w, *guards)
    value = read(data, spec, n, c, h, w)
    return tirx.if_then_else(inside, value, tirx.const(0, spec.dtype))


def placeholders(spec: ConvSpec, epilogue: Epilogue) -> tuple[te.Tensor, list[te.Tensor]]:
    """(X, [B], [R]): the input, and the epilogue's inputs in argument order."""
    data = te.placeholder(spec.input_shape, spec.dtype, name="X")
    extra = []
    if epilogue.bias:
        extra.append(te.placeholder((spec.k,), spec.acc, name="B"))
    if epilogue.residual:
        extra.append(te.placeholder(spec.output_shape, spec.out_dtype, name="R"))
    return data, extra


def output(
    spec: ConvSpec,
    epilogue: Epilogue,
    extra: list[te.Tensor],
    value: Callable[[Expr, Expr, Expr, Expr], Expr],
    name: str,
) -> te.Tensor:
    """The output tensor in the spec's layout: epilogue(value(n, k, h, w)), cast last.

    Args:
        extra: the tensors of `placeholders`.  value: in the accumulation dtype.
    """

    def compute(*index: Expr) -> Expr:
        at = dict(zip(spec.layout, index, strict=True))
        out = value(at["N"], at["C"], at["H"], at["W"])
        return apply_epilogue(out, spec, epilogue, extra, at["C"], index)

    return te.compute(spec.output_shape, compute, name=name)


def apply_epilogue(
    value: Expr,
    spec: ConvSpec,
    epilogue: Epilogue,
    extra: Sequence[Any],
    k: Expr,
    index: Sequence[Expr],
) -> Expr:
    """`value` of the accumulation dtype + bias + residual, activation, cast: that of `index`.

    Args:
        extra: [B], [R], as TE tensors or TIR buffers.  index: in the output, of filter `k`.
    """
    rest = list(extra)
    if epilogue.bias:
        value = value + rest.pop(0)[k]
    if epilogue.residual:
        value = value + rest.pop(0)[tuple(index)].astype(spec.acc)
    if applied := epilogue.applied:
        # TVM 0.27 takes the bits of a bfloat16 that is loaded in a Let's value for a number.
        named = spec.dtype != "bfloat16"
        value = once(applied.tir, value, spec.acc) if named else applied.tir(value)
    return value.astype(spec.out_dtype)


def once(function: Callable[[Expr], Expr], value: Expr, dtype: str) -> Expr:
    """function(value); a value that it reads several times is computed once."""
    name = tirx.Var("value", dtype)
    out, reads = function(name), []
    analysis.post_order_visit(out, lambda part: reads.append(part.same_as(name)))
    return function(value) if sum(reads) <= 1 else tirx.Let(name, value, out)
