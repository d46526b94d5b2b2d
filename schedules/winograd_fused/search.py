"""Which config of the fused kernel a convolution gets: the default, and those worth trying."""

from __future__ import annotations

from dataclasses import replace

from tvm_winograd.gpu import Gpu, Hardware
from tvm_winograd.shapes import ConvSpec
from tvm_winograd.te import winograd
from tvm_winograd.te.common import ceil_div

from .config import Fused, FusedTile
from .legal import illegal
from .named import NAMED

# Largest reuse first: what the default chooses from.
LADDER = (
    Fused(),
    Fused(bk=32, tk=8, rounds=2),
    Fused(bk=32, bp=16, tk=8, lanes="eekkp", rounds=2),
    Fused(bk=16, bp=16, tk=4, tp=4, rounds=1),
)
# Also in parts of C. (128, 28^2) and (256, 14^2) at batch 1 take 7.4 and 7.6 us with three stages,
# 7.5 and 7.9 with two, 7.5 and 7.8 with the best of the ladder (H200, 2026-11-30).
_ALSO_SPLIT = tuple(Fused(bp=16, tk=8, lanes="ekkkp", rounds=2, stages=stages) for stages in (2, 3))
_OTHERS = (
    Fused(bk=32, bp=12, tk=4, tp=12, lanes="eekkk", rounds=1),
    Fused(bp=16, lanes="eekpk"),
    Fused(bk=32, lanes="eepkp"),
    Fused(tk=8, lanes="kpkkp", rounds=2),
    Fused(bk=16, bp=16, tk=8, lanes="eeekp", rounds=2),
)
# 132 blocks for (64, 56^2) at batch 1: 6.4 us, 6.7 without `overlap` (bias and residual are then
# loaded tile by tile behind guards), 9.2 without held and near either (H200, 2026-11-30).
_AS_MANY_AS_SMS = tuple(
    Fused(
        bk=32, bp=12, tk=4, tp=12, lanes="eekkk", rounds=1, bc=bc, held=True, near=True,
        min_blocks=1, overlap=True, stages=stages,
    )
    for bc, stages in ((32, 2), (16, 2), (8, 3), (8, 2))
)  # fmt: skip
_ALMOST = 0.9  # of the SMs have one of these blocks, or they are not worth trying
# Blocks of the largest tile an SM that count as enough. With fewer, a smaller tile or parts of C.
_FILL = 0.7
# What time is made of on an H200 (1.98 GHz, driver 580, 2026-11-30; 250 points of tile and parts at
# batch 1 to 8), in steps of the first tile (1.8 us): 1 a wave of blocks, to fill and drain it; 1 a
# step and block of an SM, less for smaller tiles, but not less than the latency of a patch, which
# shows unless 4 neighbouring tiles share a row; for parts, the second kernel.
_LATENCY = 0.45
_SUM, _SUM_PART = 1.1, 0.01
_STEP_CLOCKS = 3560  # of an SM
# A step of 4 channels instead of 8 costs more than half: 1.1 to 1.2 times the whole (H200).
_THIN_STEP = 1.17
# Columns of a map from which patches are held only where C is in parts: at 28 and 56 columns,
# batch 128, ptxas's order is 1 and 2 % faster, at 14 and 7 2 and 11 % slower (H200, 2026-11-30).
_WIDE = 28
# Over NCHW: 407 / 373 us at (64, 56^2) and 350 / 345 at (256, 14^2), batch 128; geometric mean.
NHWC = 1.05
# The kernel's start, and how much longer a step takes where rows are no multiple of 16 bytes: 750
# configs of 88 convolutions take 4 +- 10 % less than that (standard deviation; H200, 2026-11-30).
_START_CLOCKS = 1500
_ODD_ROWS = 1.09


def portable(spec: ConvSpec) -> Fused:
    """For any GPU since sm_75, in 48 KB: what PTX for unknown GPUs is made of."""
    return Fused(bc=4, unroll=4, weights="registers")


def default(spec: ConvSpec, gpu: Gpu) -> Fused:
    """The largest tile if it fills `gpu`, else the cheapest of all tiles and parts.

    ResNet's four 3x3 layers with bias, residual and ReLU in a CUDA graph (H200, 2026-11-30): batch
    1 takes 6.7, 8.0, 9.1 and 8.2 us, without parts 7.1, 15, 27 and 46; batch 4 17, 18, 22 and 20,
    without 17, 27, 51 and 46. The best point of each is 7 % faster at batch 1, 3 % at 4 and 8
    (geometric means).
    """
    largest = _variants(LADDER[0], spec, gpu)
    if largest and _blocks(largest[0], spec) >= _FILL * gpu.sms:
        return min(largest, key=lambda c: cost(c, spec, gpu))  # few channels: thin steps
    best = [found for tile in LADDER for found in _split(tile, spec, gpu)[:1]]
    return min(best, key=lambda c: cost(c, spec, gpu), default=portable(spec))


def seconds(config: Fused, spec: ConvSpec, gpu: Gpu) -> float:
    """Estimated time."""
    steps = cost(config, spec, gpu)
    if spec.layout == "NHWC":
        steps *= NHWC
    elif spec.layout == "NCHW" and spec.ow % 4:
        steps *= _ODD_ROWS
    return (steps * _STEP_CLOCKS + _START_CLOCKS) / gpu.hertz


def workspace(config: FusedTile, spec: ConvSpec) -> int:
    """Bytes of the parts' output tiles."""
    z = winograd.sizes(spec, config.tiling)
    outputs = z.kb * z.bk * z.pb * z.bp * config.tiling.m**2
    return 4 * config.split_c * outputs if config.split_c > 1 else 0


def configs(spec: ConvSpec, hw: Hardware) -> list[Fused]:
    """The legal configs worth trying, the default first."""
    assert isinstance(hw, Gpu)
    first = default(spec, hw)
    out = [first]
    for tile in LADDER + _ALSO_SPLIT + _OTHERS:
        few = [] if tile in _OTHERS else _split(tile, spec, hw)[:2]
        out += [*few, *_tried(tile, spec, hw)]
    # 362, not 371 us with 8 at (64, 56^2), batch 128
    out += [replace(first, rounds=n) for n in (1, 8)]
    out += [c for c in _AS_MANY_AS_SMS if _ALMOST * hw.sms <= _blocks(c, spec) <= hw.sms]
    out += [replace(first, held=not first.held), replace(first, near=not first.near)]
    out.append(replace(first, held=not first.held, near=not first.near))
    if spec.ow % 2:  # 431, not 445 us at (512, 7^2), batch 128; elsewhere 7 to 20 % slower
        out.append(replace(first, weights="async", held=False, near=False, stages=3, rounds=8))
    out += NAMED.values() if spec.layout == "CHWN" else ()
    return [c for c in dict.fromkeys(out) if illegal(c, spec, hw) is None]


def _blocks(config: Fused, spec: ConvSpec) -> int:
    z = winograd.sizes(spec, config.tiling)
    return z.kb * z.pb


def _split(tile: Fused, spec: ConvSpec, gpu: Gpu) -> list[Fused]:
    """`tile` with C whole and in parts of 1, 2, 3, ... steps, each once, cheapest first."""
    steps = ceil_div(spec.c, tile.bc)
    parts = sorted({ceil_div(steps, each) for each in range(1, steps + 1)})
    ways = [_variants(replace(tile, split_c=s), spec, gpu) for s in parts if s <= tile.max_parts]
    return sorted((w[0] for w in ways if w), key=lambda c: cost(c, spec, gpu))


def cost(config: FusedTile, spec: ConvSpec, gpu: Gpu) -> float:
    """Estimated time in steps of the first tile of the ladder."""
    z = winograd.sizes(spec, config.tiling)
    blocks_of_an_sm = ceil_div(z.kb * z.pb * config.split_c, gpu.sms)
    resident = max(1, gpu.registers_per_sm // (config.threads * 2 * config.accumulators))
    step = blocks_of_an_sm * _work(config) / _work(LADDER[0])
    step *= _THIN_STEP if config.bc < LADDER[0].bc else 1
    if z.cols % 4:
        step = max(step, _LATENCY)
    after = _SUM + _SUM_PART * config.split_c if config.split_c > 1 else 0.0
    steps = z.c_pad // config.split_c // config.bc
    return steps * step + ceil_div(blocks_of_an_sm, resident) + after


def _work(config: FusedTile) -> float:
    """Of a block's step: multiplications, and the loads of fragments that they take."""
    loads = 1 / config.tk + 1 / config.tp
    return config.bk * config.bp * config.bc * (1 + 2 * loads)


def _variants(tile: Fused, spec: ConvSpec, gpu: Gpu) -> list[Fused]:
    """The legal ways to move data for one size of block and thread, best first.

    On maps of odd width whose patches are not held, registers come first: (512, 7^2) at batch 128
    takes 460 us with them and 500 with cp.async, behind which ptxas hides the patch's loads badly
    there; held it takes 447. In parts, whose loops are short, cp.async wins (H200, 2026-11-30).
    """
    out = []
    held = _is_held(tile, spec)
    odd = spec.ow % 2 and tile.split_c == 1 and not held
    ways = ("registers", "async") if odd else ("async", "registers")
    for weights in ways:
        near = held and weights == "async"  # 498, not 460 us with held and registers
        for bc, unroll in ((8, 8), (8, 4), (4, 4)):
            config = replace(tile, weights=weights, bc=bc, unroll=unroll, held=near, near=near)
            if illegal(config, spec, gpu) is None:
                out.append(config)
    return out


def _tried(tile: Fused, spec: ConvSpec, gpu: Gpu) -> list[Fused]:
    """`_variants` less those far from the best in fp32, where the others are legal.

    With unroll=4 the best was 4 % slower at least (33 convolutions in NCHW), with steps of 4
    channels 7 % (29), but the fastest for C = 3, which they pad less (H200, 2026-11-30).
    """
    ways = _variants(tile, spec, gpu)
    best = {c.weights for c in ways if c.unroll == 8}
    if spec.dtype != "float32":
        return ways
    thin = ceil_div(spec.c, 4) % 2 == 1
    return [c for c in ways if c.weights not in best or c.unroll == 8 or (thin and c.bc == 4)]


def _is_held(tile: Fused, spec: ConvSpec) -> bool:
    """Whether patches are held by default; not measured in other layouts than NCHW."""
    narrow = spec.ow < _WIDE or tile.split_c > 1
    return narrow and spec.layout == "NCHW" and spec.dtype == "float32"
