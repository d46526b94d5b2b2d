"""The CUDA text of the tensor-core kernels."""

from __future__ import annotations

import functools
from pathlib import Path

from tvm_winograd.activation import Applied

from . import activation

FOLDER = Path(__file__).parent
_GUARD = "TVM_WINOGRAD_TENSOR_CORE"


@functools.cache
def text(applied: Applied | None = None) -> str:
    """sm90.cuh, wgmma.cuh and an activation, guarded: TVM repeats the text with each function."""
    files = [(FOLDER / name).read_text("utf-8") for name in ("sm90.cuh", "wgmma.cuh")]
    header = "\n".join([f"#ifndef {_GUARD}\n#define {_GUARD}", *files, f"#endif  // {_GUARD}\n"])
    return header + activation.text_of(applied)
