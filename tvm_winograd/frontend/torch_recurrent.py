"""torch's LSTM, GRU and RNN, whole: decomposed, they are a dozen nodes for each step of time.

TVM's importer (0.27) gives the first of their results alone, and knows one layer of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from tvm import relax

from ..errors import ModelError
from ..ir.recurrent import CELLS, Recurrent
from .recurrent import emit_layer

# operator -> (cell, its gates in torch's order, its functions)
_OPERATORS = {
    "lstm.input": ("LSTM", "ifco", CELLS["LSTM"].functions),
    "gru.input": ("GRU", "rzh", CELLS["GRU"].functions),
    "rnn_tanh.input": ("RNN", "h", ("tanh",)),
    "rnn_relu.input": ("RNN", "h", ("relu",)),
}


def decompositions(exported: Any) -> Any:
    """For `exported.run_decompositions`: torch's own but for the operators converted here.

    An LSTM with projections is decomposed; so are all others beside it.
    """
    table = torch.export.default_decompositions()
    nodes = [n for n in exported.graph.nodes if _name(n) in _OPERATORS]
    for node in [] if any(_is_projected(n) for n in nodes) else nodes:
        table.pop(node.target, None)
    return table


def _name(node: Any) -> str:
    return getattr(node.target, "__name__", "")


def _is_projected(node: Any) -> bool:
    """Whether there is a weight more for each layer and direction than usual."""
    _, _, weights, biases, layers, _, _, both, _ = node.args
    return len(weights) != layers * (1 + both) * (4 if biases else 2)


def _convert(node: Any, importer: Any) -> Any:
    """The states of the last layer, and the last states (and memories) of all layers."""
    x, starts, weights, biases, layers, dropout, train, both, _ = node.args
    if train and dropout:
        raise ModelError(
            f"{_name(node)} (node {node.name!r}) is not supported: it is in training mode; export "
            "the model after .eval()"
        )
    starts = starts if isinstance(starts, Sequence) else [starts]
    emit, y, directions = importer.block_builder.emit, importer.env[x], 1 + both
    kinds = 4 if biases else 2  # of weights: for x, for the state, and a bias for each
    ends = []
    for first in range(0, layers * directions, directions):
        own = weights[first * kinds : (first + directions) * kinds]
        w, r = (_joined(importer, own[i::kinds], directions) for i in (0, 1))
        given = {
            name: _of_layer(importer, state, first, directions)
            for name, state in zip("HC", starts, strict=False)
        }
        if biases:
            each = [b for i in range(0, len(own), kinds) for b in own[i + 2 : i + kinds]]
            given["B"] = _joined(importer, each, directions)
        y, *last = emit_layer(importer.block_builder, _layer(node, y, r), y, w, r, given)
        sizes = [int(n) for n in y.ty.shape.values]  # batch and steps, directions, hidden
        y = emit(relax.op.reshape(y, [*sizes[:2], sizes[2] * sizes[3]]))
        ends.append(last)
    all_ends = (emit(relax.op.concat(list(each), 0)) for each in zip(*ends, strict=True))
    return emit(relax.Tuple([y, *all_ends]))


def _layer(node: Any, x: Any, r: Any) -> Recurrent:
    cell, gates, functions = _OPERATORS[_name(node)]
    batch_first = node.args[8]
    directions, _, hidden = (int(n) for n in r.ty.shape.values)
    steps, batch = [int(n) for n in x.ty.shape.values][:2][:: -1 if batch_first else 1]
    return Recurrent(
        cell,
        steps,
        batch,
        hidden,
        (False, True)[:directions],
        gates,
        tuple(tuple((name, ()) for name in functions) for _ in range(directions)),
        x_axes="bt" if batch_first else "tb",
        y_axes="btdh" if batch_first else "tbdh",
        reset_after=cell == "GRU",
    )


def _joined(importer: Any, parts: Sequence[Any], directions: int) -> Any:
    """Weights one behind the other, a first axis for the directions before them."""
    emit = importer.block_builder.emit
    whole = emit(relax.op.concat([importer.env[p] for p in parts], 0))
    rows, *rest = (int(n) for n in whole.ty.shape.values)
    return emit(relax.op.reshape(whole, [directions, rows // directions, *rest]))


def _of_layer(importer: Any, state: Any, first: int, directions: int) -> Any:
    """What a layer starts with, None if it is known to be 0."""
    known = importer.known(state)
    if known is not None and not known.any():
        return None
    cut = relax.op.strided_slice(importer.env[state], [0], [first], [first + directions])
    return importer.block_builder.emit(cut)


CONVERT: dict[str, Callable[[Any, Any], Any]] = dict.fromkeys(_OPERATORS, _convert)
