"""What the depthwise CUDA kernel costs: estimated seconds."""

from __future__ import annotations

from tvm_winograd.gpu import Gpu
from tvm_winograd.shapes import ConvSpec
from tvm_winograd.te.common import product

from ..base import blocks
from ..base.product_time import SCHEDULERS, stream_seconds
from .config import Depthwise

# Threads of an SM that hide the latency of loads.
_THREADS_PER_SM = 512
_STORE = 4  # instructions of an output's store with its epilogue (SASS for sm_90)
_PROLOGUE = 60  # instructions of a thread's indices (SASS for sm_90)


def cost(config: Depthwise, spec: ConvSpec, gpu: Gpu) -> float:
    """Clocks of an SM's one port for loads and stores: a warp's access takes one a line or more."""
    apart = config.tw * spec.strides[1] if spec.layout == "NCHW" else 1  # words between lanes
    taps = spec.r * spec.s
    loads = config.patch_size(spec) if config.patch else taps * config.outputs
    weights = taps if config.tk in (2, 4) else taps * config.tk  # vectors of 2 or 4
    each = spec.c // spec.groups * (loads * apart + weights) + config.outputs
    threads = max(product(config.grid(spec)), gpu.sms * _THREADS_PER_SM)
    return each * threads / blocks.WARP / gpu.sms


def seconds(config: Depthwise, spec: ConvSpec, gpu: Gpu) -> float:
    """Estimated time: of memory, of loads and stores, or of instructions, whichever is most."""
    taps = spec.r * spec.s * spec.c // spec.groups
    each = config.outputs * (2 * taps + _STORE) + _PROLOGUE
    issue = each * product(config.grid(spec)) / blocks.WARP / SCHEDULERS / gpu.sms
    return max(stream_seconds(spec.bytes, gpu), max(issue, cost(config, spec, gpu)) / gpu.hertz)
