"""Weights as the tensor cores read them: scaled, split into two fp16, permuted, swizzled.

    A    uint32 words    (G * Kb, step, filter, 32)   a block of B each: rows of 128 bytes
                         (G * Kb, filter)             float32: what undoes a filter's scale

A row of B holds 32 products of a filter as fp16, high parts then low parts. wgmma.cuh says why
products and filters are permuted within 16; pieces of 16 bytes lie where wgmma's 128-byte swizzle
looks for them.
"""

from __future__ import annotations

import numpy as np

from tvm_winograd.shapes import ConvSpec
from tvm_winograd.te.common import ceil_div

from . import sizes
from .config import STEP, TensorCore

_PIECE = 8  # fp16 in 16 bytes
_PERMUTED = 16  # products, or filters


def shape(spec: ConvSpec, config: TensorCore) -> tuple[int]:
    """Shape of the packed weights, in words."""
    return (sum(sizes.weight_words(spec, config)),)


def pack_weights(w: np.ndarray, spec: ConvSpec, config: TensorCore) -> np.ndarray:
    """(k, c/groups, r, s) float32 -> A, uint32."""
    groups, filters, channels = spec.groups, spec.k // spec.groups, sizes.group_channels(spec)
    run = sizes.run(spec)
    taps: np.ndarray = np.asarray(w, "float32").reshape(spec.k, -1, spec.r * spec.s)
    taps = np.pad(taps, ((0, 0), (0, channels - taps.shape[1]), (0, 0)))
    taps = taps.reshape(spec.k, channels // run, run, -1).transpose(0, 1, 3, 2)
    length = sizes.steps(spec) * STEP
    shape = groups, ceil_div(filters, config.filters) * config.filters, length
    rows: np.ndarray = np.zeros(shape, "float32")
    rows[:, :filters, : sizes.products(spec)] = taps.reshape(groups, filters, -1)
    rows = rows.reshape(-1, length)
    scale, undo = scales(rows)
    high, low = split(rows, scale[:, None])
    blocks = _in_blocks(np.stack([high, low]), config)
    return np.concatenate([blocks.view("uint32").reshape(-1), undo.view("uint32")])


def scales(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of each row a power of two that lifts its largest finite number to 2^13 .. 2^14; its inverse.

    As `scale_of` and `unscale_of` in wgmma.cuh: float32 ends at 2^126, where rows are tiny.
    """
    finite = np.where(np.isfinite(rows), np.abs(rows), np.float32(0))
    exponents = np.maximum(finite.max(1).view("uint32") >> 23, 14).astype("uint32")
    return ((267 - exponents) << 23).view("float32"), ((exponents - 13) << 23).view("float32")


def split(values: np.ndarray, scale: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scaled values as two fp16: the nearest, and what is left."""
    with np.errstate(invalid="ignore", over="ignore"):  # infinities and NaN stay what they are
        scaled = values * scale
        high = scaled.astype("float16")
        return high, (scaled - high.astype("float32")).astype("float16")


def inverse_permutation() -> np.ndarray:
    """What stands at position 8 b + 2 t + e of 16: number 4 t + 2 b + e."""
    position = np.arange(_PERMUTED)
    return position % 8 // 2 * 4 + position // 8 * 2 + position % 2


def _in_blocks(parts: np.ndarray, config: TensorCore) -> np.ndarray:
    """(high or low, filter, product) -> (tile of filters, step, filter, product), as in memory."""
    order = inverse_permutation()
    halves, length = STEP // _PERMUTED, parts.shape[2] // STEP
    split_axes = parts.reshape(2, -1, config.filters // _PERMUTED, _PERMUTED, length, halves, 16)
    permuted = split_axes[:, :, :, order][..., order]
    # (tile, step, filter of 16s, filter, part, 16s, product): a row is high then low
    rows = permuted.transpose(1, 4, 2, 3, 0, 5, 6).reshape(-1, length, config.filters, 2 * STEP)
    pieces = rows.reshape(*rows.shape[:3], 2 * STEP // _PIECE, _PIECE)
    filter_of = np.arange(config.filters)[:, None]
    place = np.arange(pieces.shape[3])[None, :] ^ filter_of % 8
    return np.ascontiguousarray(pieces[:, :, filter_of, place])
