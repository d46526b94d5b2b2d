"""What Winograd F(4x4) in three kernels can compute, and which of its configs are legal."""

from __future__ import annotations

from tvm_winograd.gpu import Gpu
from tvm_winograd.shapes import ConvSpec, Epilogue
from tvm_winograd.te import winograd

from ..base import blocks
from ..base.legal import Needs, exceeds
from .config import POINTS, Staged


def supports(spec: ConvSpec, epilogue: Epilogue, gpu: Gpu) -> str | None:
    """None, or why no config can compute `spec`."""
    return winograd.applies(spec)


def needs(config: Staged, spec: ConvSpec) -> Needs:
    """What the three kernels take of a GPU; the GEMM takes most registers."""
    registers = config.accumulators + config.tk + config.tp + _staged_registers(config) + 32
    copies = 'copies="async"' if config.copies == "async" else None
    return Needs(config.shared_bytes, config.gemm_threads, registers, copies)


def illegal(config: Staged, spec: ConvSpec, gpu: Gpu) -> str | None:
    """None, or why `config` cannot run `spec` on `gpu`."""
    if reason := _malformed(config) or exceeds(needs(config, spec), gpu):
        return reason
    z = winograd.sizes(spec, config.tiling)
    if z.pb % config.chunks:
        return f"chunks={config.chunks} does not divide {z.pb} blocks of tiles"
    if z.kb > 65535:
        return f"{z.kb} blocks of filters; a grid has at most 65535"
    u = POINTS * z.c_pad * z.kb * z.bk
    v, m = (POINTS * z.pb * z.bp * n // config.chunks for n in (z.c_pad, z.kb * z.bk))
    tiles = 16 * z.kb * z.bk * z.pb * z.bp
    return blocks.too_large(max(u, v, m, tiles), max(u, v) if config.copies == "async" else 0)


def _malformed(config: Staged) -> str | None:
    """None, or why the numbers of `config` do not fit each other, whatever the GPU."""
    if reason := config.malformed_tile("bc", "buffers", "threads", "patches", "tiles", "chunks"):
        return reason
    if config.row < 0:
        return f"row={config.row}: 0 or a positive integer is needed"
    return _malformed_gemm(config) or _malformed_transforms(config)


def _malformed_gemm(config: Staged) -> str | None:
    if reason := config.malformed_lanes():
        return reason
    for name in ("bk", "bp"):
        if config.bc * getattr(config, name) % (4 * config.gemm_threads):
            return f"{name}={getattr(config, name)}, bc={config.bc}: a step's copy is uneven"
    if (config.copies == "async") != (config.buffers > 1):
        return f'buffers={config.buffers} with copies={config.copies!r}: 2 or more if "async", or 1'
    return None


def _malformed_transforms(config: Staged) -> str | None:
    if config.threads % blocks.WARP or config.threads > 1024:
        return f"threads={config.threads}: a multiple of 32, at most 1024"
    for name in ("patches", "tiles"):
        if getattr(config, name) * config.threads % config.bp:
            return f"{name}={getattr(config, name)}: not {config.bp} tiles for {config.threads}"
    if config.bc % config.channels:
        return f"{config.channels} channels an input transform block do not divide bc={config.bc}"
    if config.row and config.bp % config.row:
        return f"row={config.row} does not divide bp={config.bp}"
    if config.filters > 2 and (config.filters % 4 or config.lane_k % (config.filters // 4)):
        return f"{config.filters} filters an output transform block do not divide bk={config.bk}"
    return None


def _staged_registers(config: Staged) -> int:
    """A step's share of U and V on its way through a thread's registers."""
    if config.copies == "async":
        return 0
    return config.bc * (config.bk + config.bp) // config.gemm_threads
