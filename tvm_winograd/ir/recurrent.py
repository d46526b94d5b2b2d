"""Recurrent layers (LSTM, GRU, RNN): what one computes, and how its loops say so.

The loops of a layer are a PrimFunc (te/recurrent.py) that a frontend calls. Its attribute `MARK`
holds the layer as text, by which it is scheduled (schedules/rest) and evaluated (truth).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..activation import sigmoid

MARK = "tvm_winograd.recurrent"
Applied = tuple[str, tuple[float, ...]]  # a name of FUNCTIONS, the values of its parameters


@dataclass(frozen=True)
class Function:
    """What a gate or a state goes through; functions take their parameters behind x."""

    parameters: tuple[float, ...]  # by default: alpha, beta
    numpy: Callable[..., np.ndarray]  # (x)
    tir: Callable[..., Any]  # (tvm.tirx, x)


FUNCTIONS = {
    "sigmoid": Function((), sigmoid, lambda t, x: 1.0 / (1.0 + t.exp(-x))),
    "tanh": Function((), np.tanh, lambda t, x: t.tanh(x)),
    "relu": Function((), lambda x: np.maximum(x, 0), lambda t, x: t.max(x, 0.0)),
    "hard_sigmoid": Function(
        (0.2, 0.5),
        lambda x, slope, middle: np.clip(slope * x + middle, 0, 1),
        lambda t, x, slope, middle: t.max(t.min(x * slope + middle, 1.0), 0.0),
    ),
}


@dataclass(frozen=True)
class Cell:
    """A kind of layer."""

    gates: str  # a letter each, as ONNX orders them
    functions: tuple[str, ...]  # by default: of the gates, of a candidate, of a memory
    memory: bool = False  # a second state, which no other unit reads


CELLS = {
    "LSTM": Cell("iofc", ("sigmoid", "tanh", "tanh"), memory=True),  # in, out, forget, candidate
    "GRU": Cell("zrh", ("sigmoid", "tanh")),  # update, reset, candidate
    "RNN": Cell("h", ("tanh",)),
}


@dataclass(frozen=True)
class Recurrent:
    """A layer that walks along time, in one direction or in two that see nothing of each other.

    Its arguments, of float32, in the order of `inputs` and `outputs`:

        X   (steps * batch, directions * gates * hidden): W x of all steps
        R   (directions, hidden, gates * hidden): column g * hidden + j is for gate g of unit j
        B   (directions, 2 * gates * hidden): added to W x, then added to R h
        H   (directions, batch, hidden): the state before the first step; C: the memory
        P   (directions, 3 * hidden): peepholes of the gates i, o, f
        Y   the state behind each step, axes as `y_axes` says
        YH  (directions, batch, hidden): the state behind the last step; YC: the memory
    """

    cell: str  # of CELLS
    steps: int
    batch: int
    hidden: int
    backward: tuple[bool, ...]  # of each direction: from the last step to the first
    gates: str  # in the order in which W, R and B hold them; a GRU's candidate is the last
    functions: tuple[tuple[Applied, ...], ...]  # of each direction, in the order of Cell.functions
    optional: str = ""  # which of B, H, C, P are given, in this order
    x_axes: str = "tb"  # order of steps and batch in X: "tb" or "bt"
    y_axes: str = "tdbh"  # t steps, d directions, b batch, h hidden
    clip: float | None = None  # the largest magnitude of what goes into a gate's function
    reset_after: bool = False  # GRU: the reset gate scales R h instead of h
    coupled: bool = False  # LSTM: the forget gate is 1 minus the input gate

    @property
    def directions(self) -> int:
        return len(self.backward)

    @property
    def inputs(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the arguments, by name."""
        d, states = self.directions, (self.directions, self.batch, self.hidden)
        width = len(self.gates) * self.hidden
        given = {"B": (d, 2 * width), "H": states, "C": states, "P": (d, 3 * self.hidden)}
        always = {"X": (self.steps * self.batch, d * width), "R": (d, self.hidden, width)}
        return always | {name: given[name] for name in self.optional}

    @property
    def outputs(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the results, by name."""
        sizes = {"t": self.steps, "d": self.directions, "b": self.batch, "h": self.hidden}
        states = (self.directions, self.batch, self.hidden)
        memory = {"YC": states} if CELLS[self.cell].memory else {}
        return {"Y": tuple(sizes[a] for a in self.y_axes), "YH": states, **memory}

    @property
    def text(self) -> str:
        return json.dumps(asdict(self))


def recurrent_of(func: Any) -> Recurrent | None:
    """The layer that a PrimFunc computes, None if it is no recurrent one."""
    text = func.attrs.get(MARK) if func.attrs else None
    if text is None:
        return None
    fields = json.loads(str(text))
    return Recurrent(**{name: _tuples(value) for name, value in fields.items()})


def _tuples(value: Any) -> Any:
    """`value` with its lists, which JSON makes of tuples, as tuples again."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(map(_tuples, value))
    return value
