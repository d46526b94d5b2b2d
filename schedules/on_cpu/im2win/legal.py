"""What im2win on a CPU can compute, and which of its configs are legal."""

from __future__ import annotations

from tvm_winograd.gpu import Cpu
from tvm_winograd.shapes import ConvSpec, Epilogue
from tvm_winograd.te import im2win

from ...base.blocks import too_large
from .config import Im2winCpu


def supports(spec: ConvSpec, epilogue: Epilogue, cpu: Cpu) -> str | None:
    """None, or why no config can compute `spec`."""
    return im2win.applies(spec)


def illegal(config: Im2winCpu, spec: ConvSpec, cpu: Cpu) -> str | None:
    """None, or the reason why this config cannot compute `spec`."""
    if min(config.lanes, config.k_vectors, config.h_tile, config.w_tile, config.parts) < 1:
        return f"all sizes must be positive: {config}"
    if config.accumulators > 64:
        return f"{config.accumulators} accumulators: more than 64 vectors only spill"
    z = im2win.sizes(spec, config.tiling(spec))
    return too_large(max(z.workspace, z.kb * z.bk * z.products))
