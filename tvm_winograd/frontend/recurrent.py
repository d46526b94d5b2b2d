"""Recurrent layers in relax: one matmul for the inputs of all steps, then the loops over time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tvm import relax

from ..ir.recurrent import Recurrent
from ..te.recurrent import prim_func


def emit_layer(
    builder: Any, layer: Recurrent, x: Any, w: Any, r: Any, given: Mapping[str, Any]
) -> list[Any]:
    """The results of `layer`, in the order of its `outputs`.

    Args:
        layer: `optional` is read from `given`.
        x: (steps, batch, features), or as x_axes says.
        w, r: (directions, gates * hidden, features), (directions, gates * hidden, hidden).
        given: its arguments B, H, C, P by name, as `Recurrent` describes them; None: left out.
    """
    emit, op = builder.emit, relax.op
    optional = {name: given[name] for name in "BHCP" if given.get(name) is not None}
    layer = replace(layer, optional="".join(optional))
    features = int(x.ty.shape[2])
    rows, columns = layer.inputs["X"]
    # the weight first: what is made of parameters alone is made once
    weight = emit(op.permute_dims(emit(op.reshape(w, (columns, features))), [1, 0]))
    flat = emit(op.reshape(x, (rows, features)))
    arguments = [emit(op.matmul(flat, weight)), emit(op.permute_dims(r, [0, 2, 1]))]
    arguments += optional.values()
    func = prim_func(layer).without_attr("global_symbol")
    gvar = builder.add_func(func, layer.cell.lower())
    types = [relax.TensorType(shape, "float32") for shape in layer.outputs.values()]
    made = emit(relax.call_tir(gvar, arguments, types))
    return [emit(relax.TupleGetItem(made, i)) for i in range(len(types))]
