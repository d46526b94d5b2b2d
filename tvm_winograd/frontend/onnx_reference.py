"""What onnx.reference (1.23) computes otherwise than ONNX says, for `verify` to compare with.

Before opset 14 it gives a BatchNormalization the statistics of its input, before 13 it takes a
Softmax over its axis alone, and an LRN over as many channels as there are images. Of recurrent
layers it overlooks some attributes: such a model it cannot run.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun

from ..ir.recurrent import CELLS


class BatchNormalization(OpRun):
    """By the statistics given, as every version infers."""

    op_domain = ""

    def _run(self, x: Any, scale: Any, bias: Any, mean: Any, var: Any, **attrs: Any) -> Any:
        epsilon = _attribute(self.onnx_node, "epsilon", 1e-5)
        shape = (-1, *(1,) * (x.ndim - 2))
        scale, bias, mean, var = (v.reshape(shape) for v in (scale, bias, mean, var))
        return ((scale * (x - mean) / np.sqrt(var + epsilon) + bias).astype(x.dtype),)


class LRN(OpRun):
    op_domain = ""

    def _run(self, x: Any, **attrs: Any) -> Any:
        size = _attribute(self.onnx_node, "size", 1)
        alpha, beta, bias = (
            _attribute(self.onnx_node, name, value)
            for name, value in (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0))
        )
        total = np.zeros_like(x)
        for c in range(x.shape[1]):
            first, last = c - (size - 1) // 2, c + math.ceil((size - 1) / 2)
            total[:, c] = (x[:, max(first, 0) : last + 1] ** 2).sum(axis=1)
        return ((x / (bias + alpha / size * total) ** beta).astype(x.dtype),)


class Softmax(OpRun):
    """Over `axis` and all behind it."""

    op_domain = ""

    def _run(self, x: Any, **attrs: Any) -> Any:
        axis = _attribute(self.onnx_node, "axis", 1)
        rows = x.reshape(math.prod(x.shape[:axis]), -1)
        e = np.exp(rows - rows.max(axis=1, keepdims=True))
        return ((e / e.sum(axis=1, keepdims=True)).reshape(x.shape),)


class LogSoftmax(Softmax):
    def _run(self, x: Any, **attrs: Any) -> Any:
        return (np.log(super()._run(x)[0]),)


# of LSTM, GRU and RNN; older releases take "reverse" for "forward"
_OVERLOOKED = ("activations", "activation_alpha", "activation_beta", "clip", "input_forget")


def overlooked(proto: Any) -> list[str]:
    """The nodes of a model, by operator and name, that onnx.reference computes wrongly."""
    return [
        f"{node.op_type} (node {node.name!r}) with {a.name}"
        for node in proto.graph.node
        if node.op_type in CELLS
        for a in node.attribute
        if a.name in _OVERLOOKED or a.s == b"reverse"
    ]


def corrections(opsets: Any) -> list[type[OpRun]]:
    """For ReferenceEvaluator(new_ops=) of a model with these `opset_import`."""
    (version,) = (o.version for o in opsets if o.domain in ("", "ai.onnx"))
    old = [BatchNormalization] * (version < 14) + [Softmax, LogSoftmax] * (version < 13)
    return [LRN, *old]


def _attribute(node: Any, name: str, default: Any) -> Any:
    from onnx.helper import get_attribute_value

    found = [get_attribute_value(a) for a in node.attribute if a.name == name]
    return found[0] if found else default
