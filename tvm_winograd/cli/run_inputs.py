"""The inputs of `run`: files, or random values where none is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..deploy.arguments import numpy_dtype
from ..deploy.batches import Batches
from ..deploy.manifest import with_batch
from ..errors import InputError
from .preprocess import read_input

_SEED = 0


def read_inputs(
    files: Sequence[str],
    manifest: Mapping[str, Any],
    batches: Batches | None,
    batch: int | None,
    say: Callable[[str], None],
) -> list[np.ndarray]:
    """An array for each input of a manifest.

    Args:
        files: an image or .npy for each input in order; none: random values.
        batches, batch: where the batch varies, what it may be, and how many random images to make.
        say: told of every conversion.
    Raises:
        InputError: files of another number, form, shape or kind.
    """
    wanted = manifest["inputs"]
    if not files:
        say("no input given: random values, standard normal; uint8 0 to 255, other integers 0, 1")
        return random_inputs(_at_batch(wanted, batches, batch))
    if batch is not None:
        raise InputError("--batch is for random inputs; a file brings its own")
    if len(files) != len(wanted):
        names = ", ".join(t["name"] for t in wanted)
        raise InputError(f"{len(files)} files given, the model takes {len(wanted)}: {names}")
    return [
        read_input(
            file, tuple(t["shape"]), manifest["preprocess"], batches, dtype=t["dtype"], say=say
        )
        for file, t in zip(files, wanted, strict=True)
    ]


def _at_batch(
    wanted: Sequence[dict[str, Any]], batches: Batches | None, batch: int | None
) -> Sequence[Mapping[str, Any]]:
    """Raises:
    InputError: a batch that the model does not take.
    """
    if batches is not None:
        batches.bucket(rows := batches.high if batch is None else batch)
        return with_batch(wanted, rows)
    if batch not in (None, (fixed := wanted[0]["shape"][0])):
        raise InputError(f"--batch {batch}: the model was compiled for a batch of {fixed}")
    return wanted


def random_inputs(wanted: Sequence[Mapping[str, Any]]) -> list[np.ndarray]:
    """Standard normal values of one seed; bytes of 0 to 255; 0 and 1 for other integers."""
    rng, found = np.random.default_rng(_SEED), []
    for tensor in wanted:
        shape, most = tuple(tensor["shape"]), 256 if tensor["dtype"] == "uint8" else 2
        real = "float" in tensor["dtype"]
        values = rng.standard_normal(shape) if real else rng.integers(0, most, shape)
        found.append(values.astype(numpy_dtype(tensor["dtype"])))
    return found
