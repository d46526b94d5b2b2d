"""ONNX's LSTM, GRU and RNN, which TVM's importer (0.27) lacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax

from ..ir.recurrent import CELLS, FUNCTIONS, Applied, Recurrent
from .onnx_node import Node
from .recurrent import emit_layer

_NAMES = {"Sigmoid": "sigmoid", "Tanh": "tanh", "Relu": "relu", "HardSigmoid": "hard_sigmoid"}
_BACKWARD = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
_INPUTS = {"B": 3, "H": 5, "C": 6, "P": 7}  # behind X, W, R; 4 are the lengths of the sequences


def converter(cell: str) -> Callable[[Node], Any]:
    """Of the operator `cell`, a name of CELLS."""
    return lambda node: _layer(node, cell)


def _layer(node: Node, cell: str) -> Any:
    batch_first = bool(node.attrs.get("layout", 0))
    node.attrs.get("output_sequence")  # of opset 1: whether anybody reads the first output
    steps, batch = node.shape()[:2][:: -1 if batch_first else 1]
    hidden = node.shape(2)[2]
    if int(node.attrs.get("hidden_size", hidden)) != hidden:
        raise node.refuse(f"hidden_size is not the {hidden} of its weight R", "export it again")
    _check_lengths(node, steps)
    direction = node.text("direction", "forward")
    if direction not in _BACKWARD:
        raise node.refuse(f"direction {direction!r} is unknown")
    clip = node.attrs.get("clip", None)
    layer = Recurrent(
        cell,
        steps,
        batch,
        hidden,
        _BACKWARD[direction],
        CELLS[cell].gates,
        _functions(node, cell, len(_BACKWARD[direction])),
        x_axes="bt" if batch_first else "tb",
        y_axes="btdh" if batch_first else "tdbh",
        clip=None if clip is None else float(clip),
        reset_after=bool(node.attrs.get("linear_before_reset", 0)),
        coupled=bool(node.attrs.get("input_forget", 0)),
    )
    given = {name: _given(node, index) for name, index in _INPUTS.items()}
    if batch_first:
        given |= {n: _swapped(node, given[n]) for n in "HC" if given[n] is not None}
    y, *states = emit_layer(node.bb, layer, node.inputs[0], node.inputs[1], node.inputs[2], given)
    if batch_first:
        states = [_swapped(node, state) for state in states]
    outputs = [y, *states][: len(node.proto.output)]
    return outputs[0] if len(outputs) == 1 else relax.Tuple(outputs)


def _given(node: Node, index: int) -> Any:
    """An optional input, None if it is left out or known to be 0."""
    if index >= len(node.inputs) or node.inputs[index] is None:
        return None
    known = node.known[index]
    return None if known is not None and not known.any() else node.inputs[index]


def _swapped(node: Node, state: Any) -> Any:
    """(directions, batch, hidden) of (batch, directions, hidden), and back."""
    return node.emit(relax.op.permute_dims(state, [1, 0, 2]))


def _check_lengths(node: Node, steps: int) -> None:
    """Raises:
    ModelError: a sequence may be shorter than all steps.
    """
    lengths = node.constant(4)
    if lengths is not None and np.any(lengths != steps):
        raise node.refuse(
            f"its sequence_lens {lengths.tolist()} are not all {steps}, the number of steps",
            "run sequences of one length",
        )


def _functions(node: Node, cell: str, directions: int) -> tuple[tuple[Applied, ...], ...]:
    """The activations of each direction; alpha and beta go to those that have them, in order."""
    default = [n for _ in range(directions) for n in CELLS[cell].functions]
    asked = node.attrs.get("activations", None)
    names = default if asked is None else [_function(node, name) for name in asked]
    if len(names) != len(default):
        raise node.refuse(f"it has {len(names)} activations, {len(default)} are needed")
    alpha, beta = (list(node.attrs.get(f"activation_{n}", None) or ()) for n in ("alpha", "beta"))
    found = []
    for name in names:
        values = FUNCTIONS[name].parameters
        lists: Sequence[list[float]] = (alpha, beta)[: len(values)]
        found.append(
            (name, tuple(float(l.pop(0)) if l else v for l, v in zip(lists, values, strict=True)))
        )
    if alpha or beta:
        why = "its activation_alpha or activation_beta has more numbers than its activations take"
        raise node.refuse(why, "export it again")
    per = len(CELLS[cell].functions)
    return tuple(tuple(found[i : i + per]) for i in range(0, len(found), per))


def _function(node: Node, name: Any) -> str:
    text = name.decode() if isinstance(name, bytes) else str(name)
    for known, ours in _NAMES.items():
        if text.lower() == known.lower():  # the standard's names in any case
            return ours
    raise node.refuse(f"its activation {text} is none of {', '.join(_NAMES)}")
