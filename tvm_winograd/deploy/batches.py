"""A batch that varies at run time: the sizes that a network is compiled for, its buckets.

A run of n images takes the smallest bucket that holds them; what the bucket has more is padding.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import InputError

Batch = int | tuple[int, int]


@dataclass(frozen=True)
class Batches:
    """Any batch from `low` to the last of `sizes` (ascending): one bucket per size."""

    low: int
    sizes: tuple[int, ...]

    @property
    def high(self) -> int:
        """The largest batch."""
        return self.sizes[-1]

    def bucket(self, count: int) -> int:
        """The size of the bucket that takes `count` images.

        Raises:
            InputError: none does.
        """
        if not self.low <= count <= self.high:
            wider = f"{min(self.low, count)}-{max(self.high, count)}"
            raise InputError(
                f"a batch of {count}: this model takes {self}"
                + (f"; run it in parts, or compile it with --batch {wider}" if count > 0 else "")
            )
        return next(size for size in self.sizes if size >= count)

    def __str__(self) -> str:
        return f"batches from {self.low} to {self.high}"


def make_batches(batch: Any, buckets: Sequence[int] | None = None) -> Batches | None:
    """The Batches of `batch` = (low, high); None if `batch` is a single number or None.

    Args:
        buckets: the sizes to compile for; by default `high` and the powers of two from `low` on:
            at most half of a run is padding.
    Raises:
        InputError: no range, or buckets that do not fit it.
    """
    if not isinstance(batch, tuple):
        if buckets is not None:
            raise InputError(
                f"buckets={list(buckets)} go with a range of batches; got batch={batch!r}: give "
                "two numbers, e.g. 1-32"
            )
        return None
    if len(batch) != 2 or not all(type(n) is int for n in batch) or not 1 <= batch[0] <= batch[1]:
        raise InputError(
            f"batch={batch!r}: a range has two positive numbers, the smaller one first, e.g. 1-32"
        )
    low, high = batch
    if buckets is None:
        powers = (2**i for i in range(high.bit_length()))
        return Batches(low, (*(p for p in powers if low <= p < high), high))
    if not all(type(n) is int and low <= n <= high for n in buckets) or high not in buckets:
        raise InputError(
            f"buckets={list(buckets)} for {low}-{high}: numbers in that range are needed, "
            f"{high} among them"
        )
    return Batches(low, tuple(sorted(set(buckets))))


def parse_batch(text: str) -> Batch:
    """8 of "8", (1, 32) of "1-32".

    Raises:
        InputError: anything else.
    """
    found = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", text.strip())
    if found is None:
        raise InputError(f"batch {text!r}: a number or a range is needed, e.g. 8 or 1-32")
    first, last = found.groups()
    return int(first) if last is None else (int(first), int(last))


def parse_buckets(text: str) -> list[int]:
    """[1, 8, 32] of "1,8,32".

    Raises:
        InputError: anything else.
    """
    if not re.fullmatch(r"\d{1,9}(,\d{1,9})*", text):
        raise InputError(f"buckets {text!r}: numbers with commas are needed, e.g. 1,8,32")
    return [int(number) for number in text.split(",")]
