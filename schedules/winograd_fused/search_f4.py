"""Which config of the fused F(4x4) kernel a convolution gets: the default, and those worth trying.

Chosen by their machine code first (docs/schedules.md), then measured: 116 configs of 55
convolutions (H200, 2026-11-30). It wins where F(4x4) in three kernels would
move more than it computes: few channels or few filters.
"""

from __future__ import annotations

from dataclasses import replace

from tvm_winograd.gpu import Gpu, Hardware
from tvm_winograd.shapes import ConvSpec
from tvm_winograd.te import winograd
from tvm_winograd.te.common import ceil_div

from ..base import product_time
from .config import FusedF4
from .legal import illegal
from .search import NHWC

# The default is the cheapest of these; equal ones in this order. us at (64, 56^2), (128, 28^2),
# (256, 14^2) and (512, 7^2), batch 128, not held:
TILES = (
    FusedF4(bk=64, bp=16, lanes="kkkkp", rounds=1),  # 292 at (64, 56^2), 280 with fragments=2
    FusedF4(bk=64, bp=16, lanes="kkkkp"),  # 300, 311, 443, 508
    FusedF4(),  # 344, 348, 437, 584
    FusedF4(bc=4, unroll=4, tk=8, tp=4, lanes="pkpkp", fragments=2),  # 83 KB: sm_86, sm_89, sm_120
    FusedF4(bp=16, tp=4, rounds=1),  # 384, 371, 492, 552
)
_OTHERS = (
    FusedF4(bk=64, bp=16, tk=8, tp=4),  # 323, 321, 445, 508
    FusedF4(tk=8, tp=4, lanes="ppkkp"),
    FusedF4(tk=8, tp=4, lanes="pkpkp"),
    FusedF4(buffers=2),
    FusedF4(tk=8, tp=4, lanes="ppkkp", buffers=2),
    FusedF4(rounds=1),
    FusedF4(bk=64, bp=16, tk=8, tp=4, bc=4, unroll=4),
)
# What time is made of, in clocks of an SM, which holds one block: multiply-adds of a clock; a
# step's input patch, with more where fewer than 4 tiles share a row, so that the 32 lanes of a load
# touch 16 rows; an output tile's store, with more where rows are no multiple of 16 bytes. Those
# configs are within 8 % (standard deviation); with held patches 239 take 7 +- 14 % less. Fitted to
# these the choice was no better: 94 of 97 held-out convolutions of the grid, not 96 of 100.
_PRODUCTS = 49
_PATCH, _FAR_PATCH = 1.4, 10
_STORE, _ODD_STORE = 6.7, 14.4


def default(spec: ConvSpec, gpu: Gpu) -> FusedF4 | None:
    """The cheapest of all tiles and parts of C; None: not one is legal."""
    found = [config for tile in TILES for config in _split(tile, spec, gpu)[:1]]
    return min(found, key=lambda c: cost(c, spec, gpu), default=None)


def configs(spec: ConvSpec, hw: Hardware) -> list[FusedF4]:
    """The legal configs worth trying, the default first."""
    assert isinstance(hw, Gpu)
    first = default(spec, hw)
    out = [first, replace(first, fragments=3 - first.fragments)] if first else []
    for tile in TILES:
        out += _split(tile, spec, hw)[:1]
    whole = [_fit(tile, spec) for tile in TILES + _OTHERS]
    whole.append(replace(TILES[0], fragments=2))
    return list(dict.fromkeys(c for c in out + whole if illegal(c, spec, hw) is None))


def cost(config: FusedF4, spec: ConvSpec, gpu: Gpu) -> float:
    """Estimated time in clocks of an SM."""
    z = winograd.sizes(spec, config.tiling)
    patch = _PATCH if z.cols >= 4 else _FAR_PATCH
    step = config.all_points * config.bk * config.bp * config.bc / _PRODUCTS
    step += config.bp * config.bc * patch
    store = spec.k / z.kb * config.bp * (_ODD_STORE if spec.ow % 4 else _STORE)
    block = z.c_pad // config.split_c // config.bc * step + store
    time = ceil_div(z.kb * z.pb * config.split_c, gpu.sms) * block
    if config.split_c == 1:
        return time
    moved = 8 * config.split_c * z.kb * z.bk * z.pb * z.bp * config.m**2
    return time + product_time.LAUNCH_CLOCKS + moved / gpu.sms / product_time.L2_BYTES


def seconds(config: FusedF4, spec: ConvSpec, gpu: Gpu) -> float:
    """Estimated time; NHWC's is taken to be as much longer as F(2x2)'s."""
    factor = NHWC if spec.layout == "NHWC" else 1.0
    return (factor * cost(config, spec, gpu) + product_time.LAUNCH_CLOCKS) / gpu.hertz


def _split(tile: FusedF4, spec: ConvSpec, gpu: Gpu) -> list[FusedF4]:
    """`tile` with C whole, and in parts where that leaves SMs without a block; cheapest first."""
    tile = _fit(tile, spec)
    z, steps = winograd.sizes(spec, tile.tiling), ceil_div(spec.c, tile.bc)
    most = min(steps, tile.max_parts) if z.kb * z.pb < gpu.sms else 1
    ways = [replace(tile, split_c=n) for n in range(1, most + 1)]
    legal = [config for config in ways if illegal(config, spec, gpu) is None]
    return sorted(legal, key=lambda c: cost(c, spec, gpu))


def _fit(tile: FusedF4, spec: ConvSpec) -> FusedF4:
    """`tile` with patches held, and then the first one's operands loaded ahead (fragments=2).

    Batch 128 takes 280, 274, 357, 360 us with both at ResNet's four layers, 280, 286, 381, 508 not
    held (H200, 2026-11-30). The other layouts are not measured, nor steps of 4 channels, where
    ptxas for sm_120 spills 180 bytes at (128, 28^2).
    """
    if spec.layout != "NCHW" or spec.dtype != "float32" or tile.bc < 8:
        return tile
    return replace(tile, held=True, fragments=2 if tile == TILES[0] else tile.fragments)
