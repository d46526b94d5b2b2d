"""What im2win on CUDA can compute, and which of its configs are legal."""

from __future__ import annotations

from tvm_winograd.gpu import Gpu
from tvm_winograd.shapes import ConvSpec, Epilogue
from tvm_winograd.te import im2win
from tvm_winograd.te.common import ceil_div

from ..base import blocks
from ..base.legal import Needs, exceeds
from .config import Im2win


def supports(spec: ConvSpec, epilogue: Epilogue, gpu: Gpu) -> str | None:
    """None, or why no config can compute `spec`."""
    return im2win.applies(spec)


def needs(config: Im2win, spec: ConvSpec) -> Needs:
    """What the convolution takes of a GPU; the other kernels take less."""
    fragments = config.fragment_words(spec) + config.tk
    registers = config.accumulators + fragments + _staged_registers(config, spec) + 32
    by_async = config.shared and config.copies == "async"
    copies = 'copies="async"' if by_async else None
    return Needs(config.shared_for(spec), config.conv_threads, registers, copies)


def illegal(config: Im2win, spec: ConvSpec, gpu: Gpu) -> str | None:
    """None, or why `config` cannot run `spec` on `gpu`."""
    reason = _malformed(config) or _too_large(config, spec)
    return reason or exceeds(needs(config, spec), gpu)


def _malformed(config: Im2win) -> str | None:
    """None, or why the numbers of `config` do not fit each other, whatever the GPU."""
    positive = ("bk", "bh", "bw", "tk", "th", "tw", "bc", "buffers", "unroll", "parts", "threads")
    for name in positive:
        if (value := getattr(config, name)) < 1:
            return f"{name}={value}: a positive integer is needed"
    for axis in "khw":
        block, thread = getattr(config, f"b{axis}"), getattr(config, f"t{axis}")
        if block % thread:
            return f"t{axis}={thread} does not divide b{axis}={block}"
    if config.tk % config.k_vector:
        return f"tk={config.tk}: a multiple of 4, or less than 4, is needed"
    bits = [2 ** config.lanes.count(axis) for axis in "khw"]
    if len(config.lanes) != 5 or bits[0] * bits[1] * bits[2] != blocks.WARP:
        return f"lanes={config.lanes!r}: 5 bits, each k, h or w, are needed"
    if any(there % bit for there, bit in zip(config.grid_tile, bits, strict=True)):
        return f"lanes={config.lanes!r} do not divide {config.grid_tile} threads (k, h, w)"
    if config.conv_threads > 1024 or config.threads > 1024 or config.threads % blocks.WARP:
        return f"{config.conv_threads} and {config.threads} threads: at most 1024, whole warps"
    return _malformed_copies(config)


def _malformed_copies(config: Im2win) -> str | None:
    if config.shared and (config.copies == "async") != (config.buffers > 1):
        return f'buffers={config.buffers} with copies={config.copies!r}: 2 or more if "async", or 1'
    if config.flat % 4 or config.flat < 0:
        return f"flat={config.flat}: words of a step, a multiple of 4, or 0 are needed"
    if config.flat and (not config.shared or (config.bc, config.bs, config.parts) != (1, 0, 1)):
        return f"flat={config.flat} needs shared, bc=1, bs=0 and parts=1"
    if config.bs < 0:
        return f"bs={config.bs}: filter columns of a step, or 0 for all, are needed"
    return None


def _too_large(config: Im2win, spec: ConvSpec) -> str | None:
    if config.bs > spec.s:
        return f"bs={config.bs}: the filter has {spec.s} columns"
    if config.flat and (spec.strides[1] * spec.c * spec.r % 4 or spec.dilations[1] > 1):
        return "flat: windows are whole vectors where stride * C * R is, and dilation is 1"
    z = config.sizes(spec)
    if config.parts > 65535:
        return f"parts={config.parts}; a grid has at most 65535"
    u, windows = z.kb * z.bk * z.products, z.workspace
    sums = config.parts * z.kb * z.bk * z.hb * z.bh * z.wb * z.bw
    copied = max(u, windows) if config.shared and config.copies == "async" else 0
    return blocks.too_large(max(u, windows, sums), copied)


def _staged_registers(config: Im2win, spec: ConvSpec) -> int:
    """A step's share of weights and windows on its way through a thread's registers."""
    if not config.shared or config.copies != "registers":
        return 0
    return ceil_div(config.step_words(spec), config.conv_threads)
