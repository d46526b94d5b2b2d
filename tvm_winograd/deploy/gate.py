"""While a CUDA graph is captured, no other thread may use the GPU; this keeps our own away.

CUDA refuses a capture's neighbours what might disturb it: to allocate, or to use the default
stream. Our captures happen where a model is loaded.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Gate:
    """Many threads may be inside together, or one alone. Who waits to be alone comes first."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._together = 0  # threads inside
        self._turn = threading.Lock()  # of those who want to be alone
        self._closed = False

    @contextmanager
    def together(self) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: not self._closed)
            self._together += 1
        try:
            yield
        finally:
            with self._changed:
                self._together -= 1
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        with self._turn:
            with self._changed:
                self._closed = True
                self._changed.wait_for(lambda: self._together == 0)
            try:
                yield
            finally:
                with self._changed:
                    self._closed = False
                    self._changed.notify_all()


GPU = Gate()  # of this process
