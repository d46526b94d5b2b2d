"""The CUDA text of the tensor-core kernels."""

from __future__ import annotations

import functools
from pathlib import Path

from tvm_winograd.shapes import Epilogue

FOLDER = Path(__file__).parent
# What an epilogue ends in -> its functor in wgmma.cuh
ACTIVATIONS = {"": "Identity", "relu": "Relu", "relu6": "Relu6"}


@functools.cache
def text() -> str:
    """sm90.cuh and wgmma.cuh, one behind the other."""
    return "\n".join((FOLDER / name).read_text("utf-8") for name in ("sm90.cuh", "wgmma.cuh"))


def activation(epilogue: Epilogue) -> str:
    """The functor of an epilogue."""
    name = "relu6" if epilogue.relu6 else "relu" if epilogue.relu else ""
    return f"tensor_core::{ACTIVATIONS[name]}"
