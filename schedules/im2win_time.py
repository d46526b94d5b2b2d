"""How long im2win takes on CUDA: an estimate that its defaults and the selector go by.

Three kernels: the transform and the sum of parts move bytes; the convolution issues instructions,
which resident warps hide, or waits where a block's steps follow each other. Constants are fitted
to 192 measured configs (H200, driver 580, 2026-11-30): half of them within 8 %, nine of ten within
22 %; of 66 convolutions that were left out, within 7 % and 22 %.
"""

from __future__ import annotations

import math
from collections import Counter

from tvm_winograd.gpu import Gpu
from tvm_winograd.shapes import ConvSpec
from tvm_winograd.te import im2win
from tvm_winograd.te.common import ceil_div

from . import product_time
from .im2win_config import Im2win, row_pitch
from .product_time import SCHEDULERS

# In issue slots of a warp: a copy with its address and its words' way from L2; a turn of the loop
# over filter rows or vectors; a sum's way to device memory.
_COPY, _TURN, _STORE = 24, 15, 82
_STEP_CLOCKS = 360  # of a step beside its instructions: barriers, the first loads
_FILL_CLOCKS = 6000  # of a round of blocks: the first step's loads, the last stores
_EXPOSED = 0.5  # of the issue slots of a scheduler with one warp stay empty, of two half as many
_BANKS = 32
_OTHER_REGISTERS = 28  # of a thread, beside sums and fragments


def seconds(config: Im2win, spec: ConvSpec, gpu: Gpu) -> float:
    """Estimated time of all kernels."""
    z = im2win.sizes(spec, config.tiling)
    stream, windows = product_time.stream_seconds, 4 * z.workspace
    inputs, outputs = 4 * math.prod(spec.input_shape), 4 * math.prod(spec.output_shape)
    time = stream(inputs + windows, gpu)
    time += max(stream(windows + outputs, gpu), _convolution_clocks(config, spec, gpu) / gpu.hertz)
    if config.parts > 1:
        time += stream(2 * (config.workspace_bytes(spec) - windows) + outputs, gpu)
    return time


def _convolution_clocks(config: Im2win, spec: ConvSpec, gpu: Gpu) -> float:
    """Of the SM with most blocks."""
    z = im2win.sizes(spec, config.tiling)
    steps, taps = z.steps // config.parts, math.prod(z.taps)
    each = ceil_div(z.kb * z.hb * z.wb * config.parts, gpu.sms)
    resident = min(_resident(config, spec, gpu), each)
    turns = taps // 4 if config.flat else config.bc * spec.r
    windows = config.fragment_words(spec) * turns / (4 if config.flat else 1)
    weights = config.tk / config.k_vector * taps
    instructions = config.accumulators * taps + windows + weights + _TURN * turns
    instructions += _COPY * config.copies_of_step(spec)
    slots = steps * instructions + _STORE * config.accumulators
    warps = config.warps / SCHEDULERS
    issue = each * warps * slots * (1 + _EXPOSED / (resident * warps))
    # A 16-byte load occupies the SM's one port to shared memory for two clocks.
    ways = 2 if config.flat else _bank_conflicts(config, spec)
    port = each * steps * config.warps * (windows * ways + 2 * weights)
    step = instructions * max(1, warps) + _STEP_CLOCKS
    waiting = ceil_div(each, resident) * (steps * step + _FILL_CLOCKS)
    return max(issue, port, waiting)


def _resident(config: Im2win, spec: ConvSpec, gpu: Gpu) -> int:
    """Blocks of the convolution that an SM holds."""
    fragments = config.fragment_words(spec) + config.tk + _OTHER_REGISTERS
    registers = config.conv_threads * (config.accumulators + fragments)
    shared = config.shared_for(spec) + 1024  # which the system keeps
    return max(1, min(gpu.registers_per_sm // registers, gpu.shared_per_sm // shared, 32))


def _bank_conflicts(config: Im2win, spec: ConvSpec) -> int:
    """Clocks of a load of one word of windows by a warp."""
    pitch, run = row_pitch(config, spec), config.tw * spec.stride * spec.r
    rows, runs = (range(2 ** config.lanes.count(axis)) for axis in "hw")
    return max(Counter((h * pitch + w * run) % _BANKS for h in rows for w in runs).values())
