"""What Winograd F(4x4) in three kernels costs: estimated seconds, bytes of workspace."""

from __future__ import annotations

from dataclasses import dataclass

from tvm_winograd.gpu import Gpu
from tvm_winograd.shapes import ConvSpec
from tvm_winograd.te import winograd

from ..base import product_time
from .config import POINTS, Staged


@dataclass(frozen=True)
class Gemm:
    """What the GEMM's estimate lacks; with it the three kernels are within 9 % (standard
    deviation). Fitted to measurements by benchmarks/fit_estimates.py."""

    measured: float = 1.13  # measured over estimated time


GEMM = Gemm()


def seconds(config: Staged, spec: ConvSpec, gpu: Gpu) -> float:
    """Estimated time of the three kernels."""
    z = winograd.sizes(spec, config.tiling)
    loop = product_time.Product(
        blocks=POINTS * z.kb * z.pb,
        steps=z.c_pad // config.bc,
        threads=config.gemm_threads,
        tk=config.tk,
        tp=config.tp,
        bc=config.bc,
        copies=config.bc * (config.bk + config.bp),  # 4 instructions for 4 words
        step_bytes=4 * config.bc * (config.bk + config.bp),
        shared_bytes=4 * config.buffers * config.bc * (config.bk + config.bp),
        buffers=config.buffers,
    )
    v, m = (4 * POINTS * z.pb * z.bp * n for n in (z.c_pad, z.kb * z.bk))
    x, o = (4 * spec.n * n for n in (spec.c * spec.h * spec.w, spec.k * spec.oh * spec.ow))
    product = GEMM.measured * product_time.clocks(loop, gpu) + product_time.LAUNCH_CLOCKS
    gemm = max(product / gpu.hertz, product_time.stream_seconds(v + m, gpu))
    transforms = product_time.stream_seconds(x + v, gpu) + product_time.stream_seconds(m + o, gpu)
    chunks = (config.chunks - 1) * 3 * product_time.LAUNCH_CLOCKS / gpu.hertz
    return gemm + transforms + chunks


def workspace(config: Staged, spec: ConvSpec) -> int:
    """Bytes of V and M."""
    z = winograd.sizes(spec, config.tiling)
    return 4 * POINTS * z.pb * z.bp * (z.c_pad + z.kb * z.bk) // config.chunks
