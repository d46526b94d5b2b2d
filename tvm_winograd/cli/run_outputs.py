"""The outputs of `run` as files of numpy."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError

_FORMS = (".npy", ".npz")


def check_file(path: str) -> None:
    """Raises:
    InputError: a name that is neither .npy nor .npz, or in no folder; before any work is lost.
    """
    if Path(path).suffix not in _FORMS:
        raise InputError(f"--save {path}: a name that ends in .npy or .npz is needed")
    if not Path(path).resolve().parent.is_dir():
        raise InputError(f"--save {path}: its folder does not exist")


def save(path: str, names: Sequence[str], outputs: Sequence[np.ndarray]) -> None:
    """Writes the first output (.npy) or all by name (.npz), whole or not at all."""
    target = Path(path)
    handle, name = tempfile.mkstemp(dir=target.resolve().parent, prefix=".outputs-")
    try:
        with os.fdopen(handle, "wb") as file:
            if target.suffix == ".npy":
                np.save(file, outputs[0], allow_pickle=False)
            else:
                arrays: dict[str, Any] = dict(zip(names, outputs, strict=True))
                np.savez(file, **arrays)
        os.replace(name, target)
    except BaseException:
        os.unlink(name)
        raise
