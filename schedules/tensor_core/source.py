"""The CUDA text of the tensor-core kernels."""

from __future__ import annotations

import functools
from pathlib import Path

from tvm_winograd.shapes import Epilogue

FOLDER = Path(__file__).parent
_GUARD = "TVM_WINOGRAD_TENSOR_CORE"
# What an epilogue ends in -> its functor in wgmma.cuh
ACTIVATIONS = {"": "Identity", "relu": "Relu", "relu6": "Relu6"}


@functools.cache
def text() -> str:
    """sm90.cuh and wgmma.cuh, guarded: TVM puts a function's text in front of each of its names."""
    files = [(FOLDER / name).read_text("utf-8") for name in ("sm90.cuh", "wgmma.cuh")]
    return "\n".join([f"#ifndef {_GUARD}\n#define {_GUARD}", *files, f"#endif  // {_GUARD}\n"])


def activation(epilogue: Epilogue) -> str:
    """The functor of an epilogue."""
    name = "relu6" if epilogue.relu6 else "relu" if epilogue.relu else ""
    return f"tensor_core::{ACTIVATIONS[name]}"
