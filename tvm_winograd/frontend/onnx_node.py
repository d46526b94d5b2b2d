"""An ONNX node as its converters see it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import ModelError


@dataclass(frozen=True)
class Node:
    """A node that is converted: its inputs as relax expressions, None where left out."""

    what: str  # operator and name, for messages
    bb: Any
    inputs: Any
    attrs: Any
    opset: int
    known: Sequence[np.ndarray | None]  # values of the inputs that are constants
    proto: Any

    def emit(self, expr: Any) -> Any:
        return self.bb.emit(expr)

    def constant(self, index: int) -> np.ndarray | None:
        """An optional input that must be a constant; None if it is left out.

        Raises:
            ModelError: it is computed.
        """
        if index >= len(self.proto.input) or not self.proto.input[index]:
            return None
        value = self.known[index]
        if value is None:
            raise self.refuse(f"its input {self.proto.input[index]!r} is no constant")
        return value

    def text(self, name: str, default: str) -> str:
        value = self.attrs.get(name, default)
        return value.decode() if isinstance(value, bytes) else value

    def shape(self, index: int = 0) -> list[int]:
        return [int(dim) for dim in self.inputs[index].ty.shape.values]

    def dtype(self, index: int = 0) -> str:
        return str(self.inputs[index].ty.dtype)

    def refuse(self, why: str, do: str = "export the model without it") -> ModelError:
        return ModelError(f"{self.what} is not supported: {why}; {do}")
