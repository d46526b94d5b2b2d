"""What direct convolution on a CPU can compute, and which of its configs are legal."""

from __future__ import annotations

from tvm_winograd.gpu import Cpu
from tvm_winograd.shapes import ConvSpec, Epilogue
from tvm_winograd.te import direct

from ...base.blocks import too_large
from .config import DirectCpuConfig, workspace


def supports(spec: ConvSpec, epilogue: Epilogue, cpu: Cpu) -> str | None:
    """None, or why no config can compute `spec`; it has 32-bit indices."""
    return direct.applies(spec)


def illegal(config: DirectCpuConfig, spec: ConvSpec, cpu: Cpu) -> str | None:
    """None, or the reason why this config cannot compute `spec`."""
    if min(config.lanes, config.k_vectors, config.h_tile, config.w_tile) < 1:
        return f"all sizes must be positive: {config}"
    if config.c_chunk < 0:
        return f"c_chunk={config.c_chunk}: a positive number of channels, or 0, is needed"
    if config.apart < 1 or (config.apart > 1 and not config.depthwise):
        return f"apart={config.apart}: 1, or of depthwise a stride, is needed"
    if config.depthwise and config.w_tile % config.lanes:
        return f"w_tile={config.w_tile} must be a multiple of lanes={config.lanes}"
    if config.accumulators > 64:
        return f"{config.accumulators} accumulators: more than 64 vectors only spill"
    return direct.illegal(spec, config.tiling) or too_large(workspace(config, spec) // 4)
