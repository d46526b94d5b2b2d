"""How long im2win takes on CUDA: an estimate that its defaults and the selector go by.

Three kernels: the transform and the sum of parts move bytes; the convolution issues instructions in
rounds of as many blocks as an SM holds, which hide each other's waits, and stores its sums.
Constants are fitted to 292 measured configs (H200, driver 580, 2026-11-30): half of them within
5 %, nine of ten within 13 %; of 96 convolutions that were left out, within 6 % and 24 %.
"""

from __future__ import annotations

import math
from collections import Counter

from tvm_winograd.gpu import Gpu
from tvm_winograd.shapes import ConvSpec
from tvm_winograd.te.common import ceil_div

from ..base import product_time
from ..base.product_time import L2_BYTES, SCHEDULERS
from .config import Im2win, row_pitch

_STEP = 30  # instructions of a step's loop, barriers and addresses
# In issue slots of a warp: a copy with its address and its words' way from L2; a sum's way to
# device memory.
_COPY, _STORE = 12, 13
_STEP_CLOCKS = 275  # of a step beside its instructions: barriers, the first loads
_FILL_CLOCKS = 2900  # of a round of blocks: the first step's loads, the last stores
_EXPOSED = 0.64  # of a warp, in which its scheduler issues nothing: others hide its waits
_BANKS = 32
_OTHER_REGISTERS = 18  # of a thread, beside sums and fragments
_SECTOR = 8  # words that L2 moves together
# Words of a column of flat windows up to which the transform's threads share sectors: (768, 112²),
# 1x1, took 379 us; estimated at the rate of a copy it were 149.
_FLAT_COLUMN = 21
# How many times as long as in a copy stores take, of outputs and of the sums of parts in words; in
# vectors those are as fast: 140 us against 156 (256 -> 256, 14², 2 parts).
_OUTPUTS, _SUMS = 1.44, 3.3


def seconds(config: Im2win, spec: ConvSpec, gpu: Gpu) -> float:
    """Estimated time of all kernels."""
    z = config.sizes(spec)
    stream, windows = product_time.stream_seconds, 4 * z.workspace
    inputs, outputs = 4 * math.prod(spec.input_shape), 4 * math.prod(spec.output_shape)
    column = spec.c * spec.r if config.flat else 1
    gathered = windows * min(_SECTOR, max(1.0, column / _FLAT_COLUMN))
    time = stream(int(inputs + gathered), gpu)
    sums = config.workspace_bytes(spec) - windows
    if config.parts > 1:
        vectors = config.store == "direct" and config.tw % 4 == 0
        stored = sums if vectors else _SUMS * sums
    else:
        stored = _OUTPUTS * outputs * _sectors(config, spec)
    time += max(stream(windows + outputs, gpu), _convolution_clocks(config, spec, gpu) / gpu.hertz)
    time += product_time.memory_seconds(stored, gpu)
    return time + (stream(2 * sums + outputs, gpu) if config.parts > 1 else 0)


def _convolution_clocks(config: Im2win, spec: ConvSpec, gpu: Gpu) -> float:
    """Of the SM with most blocks, its stores to device memory apart."""
    z = config.sizes(spec)
    steps, taps = z.steps // config.parts, math.prod(z.taps)
    each = ceil_div(z.kb * z.hb * z.wb * config.parts, gpu.sms)
    resident, words = _resident(config, spec, gpu), config.fragment_words(spec)
    windows = words * taps / 16 if config.flat else words * config.bc * spec.r
    weights = config.tk / config.k_vector * taps
    instructions = _STEP + config.accumulators * taps + windows + weights
    instructions += _COPY * config.copies_of_step(spec)
    # A 16-byte load occupies the SM's one port to shared memory for two clocks.
    ways = 2 if config.flat else _bank_conflicts(config, spec)
    port = steps * config.warps * (windows * ways + 2 * weights)
    l2 = steps * 4 * config.step_words(spec) / L2_BYTES
    slots = steps * instructions + _STORE * config.accumulators
    waiting = steps * (instructions * max(1.0, config.warps / SCHEDULERS) + _STEP_CLOCKS)

    def round_of(count: int) -> float:
        # the scheduler with most warps: 7 blocks of 2 take as long as 8 (tw=13 at (128, 28²))
        issue = slots * (ceil_div(count * config.warps, SCHEDULERS) + _EXPOSED)
        shared = (issue**3 + (count * port) ** 3) ** (1 / 3)  # they hinder each other
        return max(shared, count * l2, waiting) + _FILL_CLOCKS

    rest = each % resident
    return each // resident * round_of(resident) + (round_of(rest) if rest else 0)


def _sectors(config: Im2win, spec: ConvSpec) -> float:
    """How many times the words of a block's rows of the output its sectors have."""
    aligned = math.gcd(spec.ow, config.bw, _SECTOR)
    return 1 + (_SECTOR - aligned) / config.bw


def _resident(config: Im2win, spec: ConvSpec, gpu: Gpu) -> int:
    """Blocks of the convolution that an SM holds."""
    # the compiler loads the fragments of all filter rows that are in straight line early
    straight = config.accumulators * (config.bs or spec.s) * spec.r <= config.unroll
    rows = spec.r if straight and not config.flat else 1
    fragments = rows * config.fragment_words(spec) + 2 * config.tk + _OTHER_REGISTERS
    registers = config.conv_threads * max(32, config.accumulators + fragments)
    shared = config.shared_for(spec) + 1024  # which the system keeps
    return max(1, min(gpu.registers_per_sm // registers, gpu.shared_per_sm // shared, 32))


def _bank_conflicts(config: Im2win, spec: ConvSpec) -> int:
    """Clocks of a load of one word of windows by a warp."""
    pitch, run = row_pitch(config, spec), config.tw * spec.strides[1] * spec.r
    rows, runs = (range(2 ** config.lanes.count(axis)) for axis in "hw")
    return max(Counter((h * pitch + w * run) % _BANKS for h in rows for w in runs).values())
