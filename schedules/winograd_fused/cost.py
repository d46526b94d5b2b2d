"""What the fused F(2x2) costs: estimated seconds, bytes of workspace (of F(4x4) too)."""

from __future__ import annotations

from dataclasses import dataclass

from tvm_winograd.gpu import Gpu
from tvm_winograd.shapes import ConvSpec
from tvm_winograd.te import winograd
from tvm_winograd.te.common import ceil_div

from .config import Fused, FusedTile

_UNIT = Fused()  # its step, of 64 filters x 32 tiles x 8 channels, is the unit of `cost`


@dataclass(frozen=True)
class Steps:
    """What time is made of, in steps of the largest tile unless said.

    A wave of blocks takes one step to fill and drain it, and one for each step and block of an SM.
    Fitted to measurements by benchmarks/fit_estimates.py; the estimates are then within 10 %
    (standard deviation).
    """

    clocks: float = 3560  # of an SM, a step
    start_clocks: float = 1500  # of an SM, a kernel's start
    # The least that a step takes: the latency of a patch, which shows unless 4 neighbouring tiles
    # share a row.
    latency: float = 0.45
    thin: float = 1.17  # times a step of 8 channels, for the work of one in steps of 4
    sum: float = 1.1  # the second kernel, where C is in parts
    sum_part: float = 0.01  # the same, for each part
    odd_rows: float = 1.09  # times a step, where rows are no multiple of 16 bytes (NCHW)
    nhwc: float = 1.05  # times the time in NCHW


STEPS = Steps()


def seconds(config: Fused, spec: ConvSpec, gpu: Gpu) -> float:
    """Estimated time."""
    steps = cost(config, spec, gpu)
    if spec.layout == "NHWC":
        steps *= STEPS.nhwc
    elif spec.layout == "NCHW" and spec.ow % 4:
        steps *= STEPS.odd_rows
    return (steps * STEPS.clocks + STEPS.start_clocks) / gpu.hertz


def workspace(config: FusedTile, spec: ConvSpec) -> int:
    """Bytes of the parts' output tiles."""
    z = winograd.sizes(spec, config.tiling)
    outputs = z.kb * z.bk * z.pb * z.bp * config.tiling.m**2
    return 4 * config.split_c * outputs if config.split_c > 1 else 0


def cost(config: FusedTile, spec: ConvSpec, gpu: Gpu) -> float:
    """Estimated time in steps of the largest tile."""
    z = winograd.sizes(spec, config.tiling)
    blocks_of_an_sm = ceil_div(z.kb * z.pb * config.split_c, gpu.sms)
    resident = max(1, gpu.registers_per_sm // (config.threads * 2 * config.accumulators))
    step = blocks_of_an_sm * _work(config) / _work(_UNIT)
    step *= STEPS.thin if config.bc < _UNIT.bc else 1
    if z.cols % 4:
        step = max(step, STEPS.latency)
    after = STEPS.sum + STEPS.sum_part * config.split_c if config.split_c > 1 else 0.0
    steps = z.c_pad // config.split_c // config.bc
    return steps * step + ceil_div(blocks_of_an_sm, resident) + after


def _work(config: FusedTile) -> float:
    """Work of a block's step: multiplications, and the loads of fragments that they take."""
    loads = 1 / config.tk + 1 / config.tp
    return config.bk * config.bp * config.bc * (1 + 2 * loads)
