"""How long a config of the tensor-core kernel takes: an estimate.

A block is bound by the steps of its tiles: products on the tensor cores, and what they do not hide.
A layer with short sums is bound by device memory.
"""

from __future__ import annotations

from tvm_winograd.gpu import Gpu
from tvm_winograd.schedules.base.product_time import LAUNCH_CLOCKS, memory_seconds, stream_seconds
from tvm_winograd.shapes import ConvSpec

from . import sizes
from .config import TensorCore

# Clocks of a step, by (rows, filters): 768, 576 and 384 are the tensor cores'. Shared memory serves
# them, the copies and the fragments' loads: it is the limit (H200, 2026-12-01, 3x3, batch 32, 128).
_STEP = {(128, 128): 1340, (192, 64): 1440, (128, 64): 1000}
_PATCH = {(128, 128): 0.955, (192, 64): 0.81, (128, 64): 0.85}  # a step from a patch, over that
_SHORT = 1.12  # promotion every step, over every second
_TILE = 3000  # clocks: the first stages of a tile, its store
_PART = 3000  # clocks: to store a part of a tile in the workspace
_SHARING = 10000  # clocks: a further kernel, which waits for the last part and reads them all

_SUMMAND = 300  # clocks: each part of a tile there


def seconds(config: TensorCore, spec: ConvSpec, hw: Gpu, given: bool = False) -> float:
    """The estimated time; `given`: max|x| is an argument, no kernel looks for it."""
    clocks = _block(config, spec)
    kernels = clocks / hw.hertz + LAUNCH_CLOCKS / hw.hertz
    if sizes.padded_shape(spec):
        kernels += stream_seconds(
            4 * spec.n * spec.h * spec.w * (spec.c + sizes.channels(spec)), hw
        )
    elif not given:
        kernels += stream_seconds(4 * spec.n * spec.h * spec.w * spec.c, hw)
    return max(kernels, memory_seconds(spec.bytes, hw) + LAUNCH_CLOCKS / hw.hertz)


def _block(config: TensorCore, spec: ConvSpec) -> float:
    """Clocks of the block that has most to do."""
    steps, whole = sizes.steps(spec), sizes.whole_tiles(spec, config)
    step = float(_STEP[config.rows, config.filters])
    step *= _PATCH[config.rows, config.filters] if config.patch else 1
    step *= _SHORT if config.promote == 1 else 1
    tiles = -(-whole // config.blocks)
    clocks = tiles * (steps * step + _TILE)
    if config.shares:
        share = -(-sizes.shared_tiles(spec, config) * steps // config.shares)
        clocks += share * step + (1 + share / steps) * (_TILE + _PART)
        clocks += _SHARING + _SUMMAND * config.shares / sizes.shared_tiles(spec, config)
    return clocks
