"""Recurrent layers for tests: ONNX models of one node, and their results in float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_FUNCTIONS = {
    "Sigmoid": lambda x, alpha, beta: 1 / (1 + np.exp(-x)),
    "Tanh": lambda x, alpha, beta: np.tanh(x),
    "Relu": lambda x, alpha, beta: np.where(x > 0, x, 0),
    "HardSigmoid": lambda x, alpha, beta: np.maximum(0, np.minimum(1, alpha * x + beta)),
}
_DEFAULT = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}
_ORDER = {"LSTM": "XWRBLHCP", "GRU": "XWRBLH", "RNN": "XWRBLH"}  # of inputs


def arrays(
    op: str, given: str = "B", sizes: tuple[int, ...] = (4, 2, 3, 5), **attributes: Any
) -> dict[str, np.ndarray]:
    """X, W, R and what is `given` of B, L (lengths), H, C, P, with axes as ONNX has them.

    Args:
        sizes: steps, batch, features, hidden units.
    """
    rng = np.random.default_rng(0)
    (steps, batch, features, hidden), gates = sizes, GATES[op]
    d = 1 + (attributes.get("direction") == "bidirectional")
    first = (batch, steps) if attributes.get("layout") else (steps, batch)
    state = (batch, d, hidden) if attributes.get("layout") else (d, batch, hidden)
    shapes = {"X": (*first, features), "W": (d, gates * hidden, features)}
    shapes |= {"R": (d, gates * hidden, hidden), "B": (d, 2 * gates * hidden)}
    shapes |= {"H": state, "C": state, "P": (d, 3 * hidden)}
    found = {n: rng.standard_normal(s).astype("float32") for n, s in shapes.items()}
    found["R"] /= np.float32(hidden**0.5)
    found["L"] = np.full(batch, steps, "int32")
    return {n: found[n] for n in _ORDER[op] if n in "XWR" or n in given}


def save(
    path: Path, op: str, values: dict[str, np.ndarray], opset: int = 14, **attributes: Any
) -> Path:
    """A model of one node, all but X constants; its outputs are all that the operator has."""
    names = [n if n in values else "" for n in _ORDER[op]]
    outputs = ["Y", "Y_h", "Y_c"][: 3 if op == "LSTM" else 2]
    hidden = values["R"].shape[2]
    node = helper.make_node(op, names, outputs, "the_node", hidden_size=hidden, **attributes)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("X", TensorProto.FLOAT, values["X"].shape)],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs],
        [numpy_helper.from_array(a, n) for n, a in values.items() if n != "X"],
    )
    imports = [helper.make_opsetid("", opset)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=8), path)
    return path


def expected(op: str, values: dict[str, np.ndarray], **attributes: Any) -> list[np.ndarray]:
    """What the standard says, one unit's formulas after the other."""
    wide = {n: a.astype("float64") for n, a in values.items()}
    if batch_first := attributes.get("layout"):
        wide |= {n: wide[n].swapaxes(0, 1) for n in "XHC" if n in wide}
    found = [_walk(op, wide, d, attributes) for d in range(len(wide["R"]))]
    y = np.stack([states for states, _, _ in found], 1)
    ends = [np.stack(each) for each in list(zip(*found, strict=True))[1:]]
    if batch_first:
        y, ends = y.transpose(2, 0, 1, 3), [e.swapaxes(0, 1) for e in ends]
    return [y, *ends][: 3 if op == "LSTM" else 2]


def _walk(op: str, values: dict[str, np.ndarray], d: int, attributes: dict[str, Any]) -> tuple:
    """(all states, the last one, the last memory) of a direction."""
    w, r = values["W"][d], values["R"][d]
    steps, hidden = len(values["X"]), r.shape[1]
    wb, rb = np.split(values["B"][d] if "B" in values else np.zeros(2 * len(r)), 2)
    h, c = (values[n][d] if n in values else np.zeros((values["X"].shape[1], hidden)) for n in "HC")
    p = np.split(values["P"][d] if "P" in values else np.zeros(3 * hidden), 3)
    back = d == 1 or attributes.get("direction") == "reverse"
    states = np.empty((steps, *h.shape))
    for t in range(steps)[:: -1 if back else 1]:
        x = np.split(values["X"][t] @ w.T + wb, GATES[op], 1)
        weights = list(zip(np.split(r, GATES[op]), np.split(rb, GATES[op]), strict=True))
        h, c = _step(op, x, weights, (h, c, p), _functions(op, d, attributes), attributes)
        states[t] = h
    return states, h, c


def _step(op: str, x: list, weights: list, state: tuple, functions: list, options: dict) -> tuple:
    h, c, p = state
    f, g, last = [*functions, None, None][:3]
    sums = [h @ r.T + b for r, b in weights]
    if op == "RNN":
        return f(x[0] + sums[0]), c
    if op == "GRU":
        z, r = f(x[0] + sums[0]), f(x[1] + sums[1])
        matrix, bias = weights[2]
        after = options.get("linear_before_reset")
        new = g(x[2] + (r * sums[2] if after else (r * h) @ matrix.T + bias))
        return (1 - z) * new + z * h, c
    i = f(x[0] + sums[0] + p[0] * c)
    forget = 1 - i if options.get("input_forget") else f(x[2] + sums[2] + p[2] * c)
    c = forget * c + i * g(x[3] + sums[3])
    o = f(x[1] + sums[1] + p[1] * c)
    return o * last(c, clipped=False), c


def _functions(op: str, d: int, attributes: dict[str, Any]) -> list:
    """Of a direction, each behind the clip."""
    per = len(_DEFAULT[op])
    names = attributes.get("activations", _DEFAULT[op] * 2)
    alphas, betas = (list(attributes.get(f"activation_{n}", [])) for n in ("alpha", "beta"))
    found, clip = [], attributes.get("clip", np.inf)
    for name in names:
        hard = name == "HardSigmoid"
        alpha, beta = (v.pop(0) if hard and v else e for v, e in ((alphas, 0.2), (betas, 0.5)))

        def apply(x, clipped=True, function=_FUNCTIONS[name], alpha=alpha, beta=beta):
            return function(np.clip(x, -clip, clip) if clipped else x, alpha, beta)

        found.append(apply)
    return found[d * per : (d + 1) * per]
