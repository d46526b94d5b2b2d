"""Parameters of several modules without repetition: equal bytes are kept and stored once."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, BinaryIO

import numpy as np

_ALIGN = 64  # bytes; a cache line, so that params.bin can be mapped


class TensorStore:
    """params.bin as it is written."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._offsets: dict[tuple[bytes, int], int] = {}  # digest, size -> offset
        self.size = 0

    @property
    def count(self) -> int:
        return len(self._offsets)

    def add_all(self, params: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
        """Stores the tensors; their records in TVM's index, under TVM's names."""
        return [
            {
                "name": f"param_{i}",
                "shape": list(array.shape),
                "dtype": str(array.dtype),
                "format": "raw",
                "nbytes": array.nbytes,
                "byteOffset": self._add(array),
            }
            for i, array in enumerate(params.values())
        ]

    def _add(self, array: np.ndarray) -> int:
        data = _bytes(array)
        key = (hashlib.sha256(data).digest(), data.nbytes)
        if key not in self._offsets:
            padding = -self.size % _ALIGN
            self._stream.write(b"\0" * padding)
            self._stream.write(data)
            self._offsets[key] = self.size + padding
            self.size += padding + data.nbytes
        return self._offsets[key]


class SharedArrays:
    """One array in memory for all that are equal, while the modules of a model are made."""

    def __init__(self) -> None:
        self._arrays: dict[tuple[bytes, tuple[int, ...], str], np.ndarray] = {}

    def share(self, params: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """`params`, each array replaced by the first one that was equal to it."""
        return {name: self._shared(array) for name, array in params.items()}

    def _shared(self, array: np.ndarray) -> np.ndarray:
        key = (hashlib.sha256(_bytes(array)).digest(), array.shape, str(array.dtype))
        return self._arrays.setdefault(key, array)


def _bytes(array: np.ndarray) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view("uint8").data
