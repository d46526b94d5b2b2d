"""How long im2win takes on CUDA: an estimate that its defaults and the selector go by.

Three kernels: the transform and the sum of parts move bytes; the convolution issues instructions in
rounds of as many blocks as an SM holds, which hide each other's waits, and stores its sums.
Constants are fitted to measured configs: half of them within 5 %, nine of ten within 13 %.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from tvm_winograd.gpu import Gpu
from tvm_winograd.shapes import ConvSpec
from tvm_winograd.te.common import ceil_div

from ..base import product_time
from ..base.product_time import L2_BYTES, SCHEDULERS
from .config import Im2win, row_pitch


@dataclass(frozen=True)
class Terms:
    """What time is made of; instructions are issue slots of a warp."""

    step: int = 30  # instructions of a step's loop, barriers and addresses
    step_clocks: int = 275  # of a step beside its instructions: barriers, the first loads
    copy: int = 12  # instructions of a copy with its address, its words' way from L2 included
    store: int = 13  # instructions of a sum's way to device memory
    fill_clocks: int = 2900  # of a round of blocks: the first step's loads, the last stores
    # Of a warp's time, the part in which its scheduler issues nothing: others hide its waits.
    exposed: float = 0.64
    other_registers: int = 18  # of a thread, beside sums and fragments
    # Words of a column of flat windows up to which the transform's threads share sectors: (768,
    # 112²), 1x1, takes 2.5 times as long as a copy.
    flat_column: int = 21
    outputs: float = 1.44  # time of the output's stores over that of a copy
    sums: float = 3.3  # the same, of the sums of parts in words; in vectors 1


TERMS = Terms()
_BANKS = 32  # of shared memory
_SECTOR = 8  # words that L2 moves together


def seconds(config: Im2win, spec: ConvSpec, gpu: Gpu) -> float:
    """Estimated time of all kernels."""
    z = config.sizes(spec)
    stream, windows = product_time.stream_seconds, 4 * z.workspace
    inputs, outputs = 4 * math.prod(spec.input_shape), 4 * math.prod(spec.output_shape)
    column = spec.c * spec.r if config.flat else 1
    gathered = windows * min(_SECTOR, max(1.0, column / TERMS.flat_column))
    time = stream(int(inputs + gathered), gpu)
    sums = config.workspace_bytes(spec) - windows
    if config.parts > 1:
        vectors = config.store == "direct" and config.tw % 4 == 0
        stored = sums if vectors else TERMS.sums * sums
    else:
        stored = TERMS.outputs * outputs * _sectors(config, spec)
    time += max(stream(windows + outputs, gpu), _convolution_clocks(config, spec, gpu) / gpu.hertz)
    time += product_time.memory_seconds(stored, gpu)
    return time + (stream(2 * sums + outputs, gpu) if config.parts > 1 else 0)


def least(spec: ConvSpec, gpu: Gpu) -> float:
    """Less than `seconds` of any config."""
    inputs = product_time.stream_seconds(4 * math.prod(spec.input_shape), gpu)
    return inputs + product_time.least_seconds(spec, gpu) + TERMS.fill_clocks / gpu.hertz


def _convolution_clocks(config: Im2win, spec: ConvSpec, gpu: Gpu) -> float:
    """Clocks of the SM with most blocks, without its stores to device memory."""
    z = config.sizes(spec)
    steps, taps = z.steps // config.parts, math.prod(z.taps)
    each = ceil_div(z.kb * z.hb * z.wb * config.parts, gpu.sms)
    resident, words = _resident(config, spec, gpu), config.fragment_words(spec)
    windows = words * taps / 16 if config.flat else words * config.bc * spec.r
    weights = config.tk / config.k_vector * taps
    instructions = TERMS.step + config.accumulators * taps + windows + weights
    instructions += TERMS.copy * config.copies_of_step(spec)
    # A 16-byte load occupies the SM's one port to shared memory for two clocks.
    ways = 2 if config.flat else _bank_conflicts(config, spec)
    port = steps * config.warps * (windows * ways + 2 * weights)
    l2 = steps * 4 * config.step_words(spec) / L2_BYTES
    slots = steps * instructions + TERMS.store * config.accumulators
    waiting = steps * (instructions * max(1.0, config.warps / SCHEDULERS) + TERMS.step_clocks)

    def round_of(count: int) -> float:
        # the scheduler with most warps: 7 blocks of 2 take as long as 8
        issue = slots * (ceil_div(count * config.warps, SCHEDULERS) + TERMS.exposed)
        shared = (issue**3 + (count * port) ** 3) ** (1 / 3)  # they hinder each other
        return max(shared, count * l2, waiting) + TERMS.fill_clocks

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
    fragments = rows * config.fragment_words(spec) + 2 * config.tk + TERMS.other_registers
    registers = config.conv_threads * max(32, config.accumulators + fragments)
    shared = config.shared_for(spec) + 1024  # which the system keeps
    return max(1, min(gpu.registers_per_sm // registers, gpu.shared_per_sm // shared, 32))


def _bank_conflicts(config: Im2win, spec: ConvSpec) -> int:
    """Clocks of a load of one word of windows by a warp."""
    pitch, run = row_pitch(config, spec), config.tw * spec.strides[1] * spec.r
    rows, runs = (range(2 ** config.lanes.count(axis)) for axis in "hw")
    return max(Counter((h * pitch + w * run) % _BANKS for h in rows for w in runs).values())


def workspace(config: Im2win, spec: ConvSpec) -> int:
    """Bytes of the windows, and of the sums of parts."""
    return config.workspace_bytes(spec)
