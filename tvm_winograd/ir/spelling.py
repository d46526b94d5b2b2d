"""Finds an activation of the table in a relax function, and writes one.

A spelling (activation.Term) is matched from its last operator backwards. It counts only if nobody
else reads what lies in between: every reader of the value and of each step is part of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import isclose
from typing import Any

from tvm import relax, tirx

from ..activation import (
    ACTIVATIONS,
    Applied,
    Clip,
    Op,
    Param,
    Term,
    Value,
    apply,
    operators,
    subterms,
)
from ..errors import SpecError
from . import clips
from .bindings import count_uses, op_name

_COMMUTE = ("relax.add", "relax.multiply", "relax.maximum", "relax.minimum")
_ROUNDED = 1e-6  # a constant in float32 is the number that is meant


@dataclass(frozen=True)
class Found:
    """An activation, the variable that holds its result, and those in between."""

    applied: Applied
    out: relax.Var
    inner: tuple[relax.Var, ...]


@dataclass(frozen=True)
class _Match:
    """What a spelling has met so far."""

    params: Mapping[str, float] = field(default_factory=dict)
    # (variable, its reader, as which argument): a step may be met twice, its reads count once
    reads: frozenset[tuple[relax.Var, relax.Var, int]] = frozenset()


class Finder:
    """Looks for activations behind values of one relax function."""

    def __init__(
        self, func: relax.Function, values: Mapping[relax.Var, float] | None = None
    ) -> None:
        """`values`: of the function's parameters that have one element (a PReLU's slope)."""
        self._uses = count_uses(func)
        self._values = values or {}
        self._calls: dict[relax.Var, relax.Call] = {}
        self._readers: dict[relax.Var, list[relax.Var]] = {}
        for block in func.body.blocks:
            for binding in block.bindings:
                if isinstance(binding.value, relax.Call):
                    self._calls[binding.var] = binding.value
                    for arg in binding.value.args:
                        self._readers.setdefault(arg, []).append(binding.var)

    def find(self, value: relax.Var, *, integers: bool = False) -> Found | None:
        """The activation of `value` that takes most operators, if there is one.

        Args:
            integers: `value` is of integers.
        """
        best: Found | None = None
        behind = self._behind(value, max(_depth(t) for t in _spelled()))
        for activation in ACTIVATIONS.values():
            if integers and not activation.integers:
                continue
            for term in activation.spelled:
                for out, steps in behind.items():
                    if steps > _depth(term):
                        break
                    met = self._match(term, out, value, _Match())
                    found = met and self._found(activation.name, met, value, out)
                    if found and (best is None or len(found.inner) > len(best.inner)):
                        best = found
        return best

    def _behind(self, value: relax.Var, most: int) -> dict[relax.Var, int]:
        """The variables that depend on `value` through at most `most` operators that any spelling
        has, with their number, the nearest first."""
        seen: dict[relax.Var, int] = {}
        front, names = [value], operators() | clips.OPERATORS
        for steps in range(1, most + 1):
            readers = [r for v in front for r in self._readers.get(v, ()) if r not in seen]
            front = [r for r in dict.fromkeys(readers) if op_name(self._calls[r]) in names]
            seen |= dict.fromkeys(front, steps)
        return seen

    def _found(self, name: str, met: _Match, value: relax.Var, out: relax.Var) -> Found | None:
        """The match, if nobody else reads what it swallows and its parameters mean something."""
        readers = Counter(variable for variable, *_ in met.reads)
        if any(self._uses[variable] != count for variable, count in readers.items()):
            return None
        try:
            order = ACTIVATIONS[name].parameters
            applied = apply(name, tuple(met.params[parameter] for parameter in order))
        except SpecError:  # infinite
            return None
        return Found(applied, out, tuple(v for v in readers if not v.same_as(value)))

    def _match(self, term: Term, expr: Any, value: relax.Var, met: _Match) -> _Match | None:
        """`met` and what `term` meets at `expr`."""
        if isinstance(term, Param):
            return self._parameter(term, expr, met)
        if isinstance(term, float | int):
            number = self._number(expr)
            same = number is not None and isclose(number, term, rel_tol=_ROUNDED)
            return met if same else None
        if not isinstance(expr, relax.Var):
            return None
        if isinstance(term, Value):
            return met if expr.same_as(value) else None
        if expr.same_as(value) or (call := self._calls.get(expr)) is None:
            return None
        if isinstance(term, Clip):
            clip = clips.clip_of(call)
            if clip is None or (clip.low, clip.high) != (term.low, term.high):
                return None
            read = replace(met, reads=met.reads | {(clip.value, expr, 0)})
            return self._match(term.value, clip.value, value, read)
        return self._operator(term, call, value, expr, met)

    def _operator(
        self, term: Op, call: relax.Call, value: relax.Var, out: relax.Var, met: _Match
    ) -> _Match | None:
        if op_name(call) != f"relax.{term.name}" or len(call.args) != len(term.args):
            return None
        for name, wanted in term.attrs:
            given = self._match(wanted, getattr(call.attrs, name, None), value, met)
            if given is None:
                return None
            met = given
        reads = {(arg, out, i) for i, arg in enumerate(call.args) if isinstance(arg, relax.Var)}
        inner = {read for read in reads if read[0] not in self._values}
        met = replace(met, reads=met.reads | inner)
        for args in _orders(call):
            got: _Match | None = met
            for wanted, arg in zip(term.args, args, strict=True):
                got = got and self._match(wanted, arg, value, got)
            if got is not None:
                return got
        return None

    def _parameter(self, term: Param, expr: Any, met: _Match) -> _Match | None:
        number = self._number(expr)
        if number is None or met.params.get(term.name, number) != number:
            return None
        return replace(met, params={**met.params, term.name: number})

    def _number(self, expr: Any) -> float | None:
        """The one number that an argument or attribute is."""
        if isinstance(expr, float | int):
            return float(expr)
        if isinstance(expr, tirx.IntImm | tirx.FloatImm):
            return float(expr.value)
        if isinstance(expr, relax.Var):
            return self._values.get(expr)
        return clips.scalar(expr)


def _spelled() -> Iterator[Term]:
    for activation in ACTIVATIONS.values():
        yield from activation.spelled


def _depth(term: Term) -> int:
    """Operators between the value and the result, at most."""
    return sum(isinstance(inner, Op | Clip) for inner in subterms(term))


def _orders(call: relax.Call) -> Iterator[list[Any]]:
    yield list(call.args)
    if call.op.name in _COMMUTE:
        yield list(reversed(call.args))


def emit(builder: relax.BlockBuilder, applied: Applied, value: relax.Var) -> relax.Var:
    """Writes the activation's first spelling of `value` into the function being built."""
    order = applied.activation.parameters
    params = dict(zip(order, applied.values, strict=True))
    dtype = str(value.ty.dtype)

    def number(term: Any) -> float:
        return params[term.name] if isinstance(term, Param) else float(term)

    def written(term: Term) -> Any:
        if isinstance(term, Value):
            return value
        if isinstance(term, Clip):
            return builder.emit(clips.Clip(written(term.value), term.low, term.high).call())
        if not isinstance(term, Op):
            return relax.const(number(term), dtype)
        function = relax.op
        for part in term.name.split("."):
            function = getattr(function, part)
        attrs = {name: number(inner) for name, inner in term.attrs}
        return builder.emit(function(*map(written, term.args), **attrs))

    return written(applied.activation.spelled[0])
