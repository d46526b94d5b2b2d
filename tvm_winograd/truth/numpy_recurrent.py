"""Recurrent layers in numpy, by the formulas of ONNX's LSTM, GRU and RNN."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..ir.recurrent import CELLS, FUNCTIONS, Recurrent


def recurrent(layer: Recurrent, arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """The results of a layer, in the order of its `outputs`.

    Args:
        arrays: its arguments, in the order of its `inputs`; all is computed in their dtype.
    """
    given = dict(zip(layer.inputs, arrays, strict=True))
    walked = [_direction(layer, d, given).walk(given) for d in range(layer.directions)]
    y, h, c = (np.stack(parts) for parts in zip(*walked, strict=True))  # y: d, t, b, h
    y = y.transpose(["dtbh".index(axis) for axis in layer.y_axes])
    return (y, h, c) if CELLS[layer.cell].memory else (y, h)


def _direction(layer: Recurrent, d: int, given: Mapping[str, np.ndarray]) -> _Direction:
    gates, hidden, dtype = len(layer.gates), layer.hidden, given["X"].dtype
    sizes = {"t": layer.steps, "b": layer.batch}
    x = given["X"].reshape(*(sizes[a] for a in layer.x_axes), layer.directions, gates, hidden)
    x = (x if layer.x_axes == "tb" else x.swapaxes(0, 1))[:, :, d]
    bias = given["B"][d] if "B" in given else np.zeros(2 * gates * hidden, dtype)
    before, after = bias.reshape(2, gates, hidden)
    r = given["R"][d].reshape(hidden, gates, hidden)
    peepholes = given["P"][d].reshape(3, -1) if "P" in given else np.zeros((3, 1), dtype)
    return _Direction(
        layer,
        d,
        {g: x[:, :, i] + before[i] for i, g in enumerate(layer.gates)},
        {g: r[:, i] for i, g in enumerate(layer.gates)},
        dict(zip(layer.gates, after, strict=True)),
        dict(zip("iof", peepholes, strict=True)),
    )


@dataclass(frozen=True)
class _Direction:
    """A direction of a layer; by gate: W x + b of all steps, R, the bias of R, peepholes."""

    layer: Recurrent
    d: int
    x: dict[str, np.ndarray]
    r: dict[str, np.ndarray]
    bias: dict[str, np.ndarray]
    peephole: dict[str, np.ndarray]

    def walk(self, given: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(the states behind all steps, the last one, the last memory)."""
        layer, step = self.layer, _STEPS[self.layer.cell]
        states = np.zeros((layer.steps, layer.batch, layer.hidden), given["X"].dtype)
        h, c = (given[n][self.d] if n in given else np.zeros_like(states[0]) for n in "HC")
        for t in range(layer.steps)[:: -1 if layer.backward[self.d] else 1]:
            h, c = step(self, t, h, c)
            states[t] = h
        return states, h, c

    def lstm(self, t: int, h: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        def gate(name: str, memory: np.ndarray) -> np.ndarray:
            sums = self.x[name][t] + self.product(name, h)
            return self.apply(0, sums + self.peephole[name] * memory)

        i = gate("i", c)
        f = 1 - i if self.layer.coupled else gate("f", c)
        c = f * c + i * self.apply(1, self.x["c"][t] + self.product("c", h))
        return gate("o", c) * self.function(2, c), c

    def gru(self, t: int, h: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        z, r = (self.apply(0, self.x[g][t] + self.product(g, h)) for g in "zr")
        after = self.layer.reset_after
        sums = r * self.product("h", h) if after else self.product("h", r * h)
        return (1 - z) * self.apply(1, self.x["h"][t] + sums) + z * h, c

    def rnn(self, t: int, h: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.apply(0, self.x["h"][t] + self.product("h", h)), c

    def product(self, gate: str, h: np.ndarray) -> np.ndarray:
        return h @ self.r[gate] + self.bias[gate]

    def apply(self, which: int, x: np.ndarray) -> np.ndarray:
        most = self.layer.clip
        return self.function(which, x if most is None else np.clip(x, -most, most))

    def function(self, which: int, x: np.ndarray) -> np.ndarray:
        name, values = self.layer.functions[self.d][which]
        return FUNCTIONS[name].numpy(x, *values)


_Step = Callable[[_Direction, int, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
_STEPS: dict[str, _Step] = {"LSTM": _Direction.lstm, "GRU": _Direction.gru, "RNN": _Direction.rnn}
