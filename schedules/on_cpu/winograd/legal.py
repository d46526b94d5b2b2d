"""What Winograd F(2x2) on a CPU can compute, and which of its configs are legal."""

from __future__ import annotations

from tvm_winograd.gpu import Cpu
from tvm_winograd.shapes import ConvSpec, Epilogue
from tvm_winograd.te import winograd

from ...base.blocks import too_large
from .config import WinogradCpuConfig, workspace


def supports(spec: ConvSpec, epilogue: Epilogue, cpu: Cpu) -> str | None:
    """None, or why no config can compute `spec`."""
    return winograd.applies(spec)


def illegal(config: WinogradCpuConfig, spec: ConvSpec, cpu: Cpu) -> str | None:
    """None, or the reason why this config cannot compute `spec`."""
    if min(config.lanes, config.k_vectors, config.p_tile) < 1:
        return f"all sizes must be positive: {config}"
    if config.accumulators > 64:
        return f"{config.accumulators} accumulators: more than 64 vectors only spill"
    z, points = winograd.sizes(spec, config.tiling), (config.tiling.m + 2) ** 2
    return too_large(max(points * z.c_pad * z.kb * z.bk, workspace(config, spec) // 4))
