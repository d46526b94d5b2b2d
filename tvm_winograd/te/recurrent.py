"""Recurrent layers (LSTM, GRU, RNN) as loops over time.

W x of all steps is one matmul before. What is left is a walk: each step multiplies the state with
R, and makes a new state of the sums. A unit is one element of a state; a step is a chain of blocks
over the units, of which only products read the units of others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from ..errors import UnsupportedError
from ..ir.recurrent import CELLS, FUNCTIONS, MARK, Recurrent
from .common import Expr, once, product

LAYER = "layer"  # the block of one direction of one batch element
# Blocks whose names begin so: loops over gates, units and terms; over gates and units. The others
# loop over units.
PRODUCT, ADD = "product", "add"
EXCHANGED = ("h", "gated")  # buffers that other units read
_TERMS = 64  # of a sum


def prim_func(layer: Recurrent) -> Any:
    """main(X, R[, B][, H][, C][, P], Y, YH[, YC]), for schedules/rest/recurrent.py.

    Raises:
        UnsupportedError: an argument is too large for 32-bit indices.
    """
    shapes = {**layer.inputs, **layer.outputs}
    if large := [name for name, shape in shapes.items() if product(shape) >= 2**31]:
        raise UnsupportedError(
            f"{layer.cell} of {layer.steps} steps, batch {layer.batch} and {layer.hidden} hidden "
            f"units: {large[0]} has 2^31 elements or more, indices are 32-bit; take a smaller batch"
        )
    with IRBuilder() as builder:
        with T.prim_func(s_tir=True):
            T.func_name("main")
            data = {n: T.arg(n, T.buffer(shape, "float32")) for n, shape in shapes.items()}
            # opaque: nothing is fused into it
            T.func_attr({"tirx.noalias": True, "op_pattern": 8, MARK: layer.text})
            with T.sblock("root"):
                with T.grid(layer.directions, layer.batch) as loops:
                    with T.sblock(LAYER):
                        d, b = T.axis.remap("SS", loops)
                        _regions(layer, data, d, b)
                        _Walk(layer, data, d, b).write()
    return builder.get()


def _regions(layer: Recurrent, data: Mapping[str, Any], d: Expr, b: Expr) -> None:
    """What a direction of a batch element reads and writes; of X more than that, for brevity."""
    at = {"d": d, "b": b, "t": slice(0, layer.steps), "h": slice(0, layer.hidden)}
    axes = {"X": "", "R": "d", "B": "d", "P": "d", "H": "db", "C": "db", "YH": "db", "YC": "db"}
    axes["Y"] = layer.y_axes

    def region(name: str, shape: tuple[int, ...]) -> Any:
        index = [at[a] for a in axes[name]]
        return data[name][tuple(index + [slice(0, n) for n in shape[len(index) :]])]

    T.reads(*(region(*item) for item in layer.inputs.items()))
    T.writes(*(region(*item) for item in layer.outputs.items()))


class _Walk:
    """The blocks of a direction `d` of a batch element `b`."""

    def __init__(self, layer: Recurrent, data: Mapping[str, Any], d: Expr, b: Expr) -> None:
        self.layer, self.data, self.d, self.b = layer, data, d, b
        self.h, self.new_h = self._units("h"), self._units("new_h")
        if CELLS[layer.cell].memory:
            self.c, self.new_c = self._units("c"), self._units("new_c")
        self.sums: dict[str, Callable[[Expr], Expr]] = {}  # of a gate: R h of a unit

    def write(self) -> None:
        layer, memory = self.layer, CELLS[self.layer.cell].memory
        with self._each("start") as j:
            self._store(self.h, self._optional("H", self.d, self.b, j), j)
            if memory:
                self._store(self.c, self._optional("C", self.d, self.b, j), j)
        with T.serial(layer.steps) as step:
            _CELLS[layer.cell](self, step)
            with self._each("keep", step) as (j, t):
                self._store(self.h, self.new_h[j], j)
                if memory:
                    self._store(self.c, self.new_c[j], j)
                index = {"t": t, "d": self.d, "b": self.b, "h": j}
                self._store(self.data["Y"], self.new_h[j], *(index[a] for a in layer.y_axes))
        with self._each("end") as j:
            self._store(self.data["YH"], self.h[j], self.d, self.b, j)
            if memory:
                self._store(self.data["YC"], self.c[j], self.d, self.b, j)

    def lstm(self, step: Expr) -> None:
        self._product(self.layer.gates, self.h)
        with self._each("memory", step) as (j, t):
            enter = self._apply(0, self._gate("i", j, t) + self._peephole(0, self.c[j], j))
            forget = (
                tirx.const(1.0, "float32") - enter
                if self.layer.coupled
                else self._apply(0, self._gate("f", j, t) + self._peephole(2, self.c[j], j))
            )
            candidate = self._apply(1, self._gate("c", j, t))
            self._store(self.new_c, forget * self.c[j] + enter * candidate, j)
        with self._each("state", step) as (j, t):
            leave = self._apply(0, self._gate("o", j, t) + self._peephole(1, self.new_c[j], j))
            self._store(self.new_h, leave * self._function(2, self.new_c[j]), j)

    def gru(self, step: Expr) -> None:
        layer = self.layer
        if layer.reset_after:
            self._product(layer.gates, self.h)
        else:
            self._product(layer.gates[:-1], self.h)
            gated = self._units("gated")
            with self._each("reset", step) as (j, t):
                self._store(gated, self._apply(0, self._gate("r", j, t)) * self.h[j], j)
            self._product(layer.gates[-1], gated, "_gated")
        with self._each("state", step) as (j, t):
            scale = self._apply(0, self._gate("r", j, t)) if layer.reset_after else None
            candidate = self._apply(1, self._gate("h", j, t, scale))
            update = self._apply(0, self._gate("z", j, t))
            mixed = once(lambda new: new + update * (self.h[j] - new), candidate, "float32")
            self._store(self.new_h, mixed, j)

    def rnn(self, step: Expr) -> None:
        self._product("h", self.h)
        with self._each("state", step) as (j, t):
            self._store(self.new_h, self._apply(0, self._gate("h", j, t)), j)

    def _product(self, gates: str, source: Any, name: str = "") -> None:
        """R times `source`, for the units of neighbouring gates; with the second half of B.

        In parts that are added: an LSTM of 512 units errs 3.1e-7 with sums of 512 terms, and 1.0e-7
        with sums of 64.
        """
        layer, hidden = self.layer, self.layer.hidden
        first, width = layer.gates.index(gates), len(layer.gates) * hidden
        sums, part = (self._units(n, len(gates)) for n in ("sums", "part"))
        terms = max((n for n in range(8, _TERMS + 1) if hidden % n == 0), default=hidden)
        with T.serial(hidden // terms) as start:
            with T.grid(len(gates), hidden, terms) as loops:
                with T.sblock(f"{PRODUCT}{name}"):
                    s = T.axis.spatial(hidden // terms, start)
                    g, j, k = T.axis.remap("SSR", loops)
                    with T.init():
                        self._store(part, tirx.const(0.0, "float32"), g, j)
                    k = s * terms + k
                    term = source[k] * self.data["R"][self.d, k, (g + first) * hidden + j]
                    self._store(part, part[g, j] + term, g, j)
            with T.grid(len(gates), hidden) as loops:
                with T.sblock(f"{ADD}{name}"):
                    T.axis.reduce(hidden // terms, start)
                    g, j = T.axis.remap("SS", loops)
                    with T.init():
                        column = width + (g + first) * hidden + j
                        self._store(sums, self._optional("B", self.d, column), g, j)
                    self._store(sums, sums[g, j] + part[g, j], g, j)
        for i, gate in enumerate(gates):
            self.sums[gate] = lambda j, i=i: sums[i, j]  # type: ignore[misc]

    def _gate(self, gate: str, j: Expr, t: Expr, scale: Expr = None) -> Expr:
        """What goes into a gate's function: W x + b + scale * (R h + b)."""
        layer, hidden = self.layer, self.layer.hidden
        column = layer.gates.index(gate) * hidden + j
        width = len(layer.gates) * hidden
        row = t * layer.batch + self.b if layer.x_axes == "tb" else self.b * layer.steps + t
        x = self.data["X"][row, self.d * width + column] + self._optional("B", self.d, column)
        sums = self.sums[gate](j)
        return x + (sums if scale is None else scale * sums)

    def _apply(self, which: int, value: Expr) -> Expr:
        """A function of the layer, of a value that is clipped before."""
        if (most := self.layer.clip) is not None:
            value = tirx.max(tirx.min(value, tirx.const(most, "float32")), -most)
        return self._function(which, value)

    def _function(self, which: int, value: Expr) -> Expr:
        applied = [of_direction[which] for of_direction in self.layer.functions]
        first, *second = (FUNCTIONS[n].tir(tirx, value, *v) for n, v in dict.fromkeys(applied))
        return tirx.if_then_else(self.d == 0, first, second[0]) if second else first

    def _peephole(self, which: int, memory: Expr, j: Expr) -> Expr:
        if "P" not in self.layer.optional:
            return tirx.const(0.0, "float32")
        return self.data["P"][self.d, which * self.layer.hidden + j] * memory

    def _optional(self, name: str, *index: Expr) -> Expr:
        """An element of an argument, 0 if it is not given."""
        given = name in self.layer.optional
        return self.data[name][index] if given else tirx.const(0.0, "float32")

    def _units(self, name: str, *outer: int) -> Any:
        """A buffer of one value a unit, or an array of such."""
        shape = (*outer, self.layer.hidden)
        return IRBuilder.name(name, T.sblock_alloc_buffer(shape, "float32"))

    def _time(self, step: Expr) -> Expr:
        """The index of a step in time."""
        back = self.layer.steps - 1 - step
        if len(set(self.layer.backward)) > 1:
            return tirx.Select(self.d == (0 if self.layer.backward[0] else 1), back, step)
        return back if self.layer.backward[0] else step

    @contextmanager
    def _each(self, name: str, step: Expr = None) -> Iterator[Any]:
        """A block over the units: (unit, time) or, outside of all steps, unit."""
        with T.serial(self.layer.hidden) as loop:
            with T.sblock(name):
                if step is None:
                    yield T.axis.spatial(self.layer.hidden, loop)
                else:
                    t = T.axis.spatial(self.layer.steps, step)
                    yield T.axis.spatial(self.layer.hidden, loop), self._time(t)

    @staticmethod
    def _store(buffer: Any, value: Expr, *index: Expr) -> None:
        T.buffer_store(buffer, value, list(index))


_CELLS = {"LSTM": _Walk.lstm, "GRU": _Walk.gru, "RNN": _Walk.rnn}
