"""Which config of the fused kernel a convolution gets: the default, and those worth trying."""

from __future__ import annotations

from dataclasses import replace

from tvm_winograd.gpu import Gpu
from tvm_winograd.shapes import ConvSpec
from tvm_winograd.te import winograd
from tvm_winograd.te.common import ceil_div

from ..base.register_tile import Way
from .config import Fused
from .cost import cost
from .legal import illegal
from .named import NAMED

# Largest reuse first: what the default chooses from.
LADDER = (
    Fused(),
    Fused(bk=32, tk=8, rounds=2),
    Fused(bk=32, bp=16, tk=8, lanes="eekkp", rounds=2),
    Fused(bk=16, bp=16, tk=4, tp=4, rounds=1),
)
# Also in parts of C: 3 % faster than the ladder at (256, 14^2), batch 1.
_ALSO_SPLIT = tuple(Fused(bp=16, tk=8, lanes="ekkkp", rounds=2, stages=stages) for stages in (2, 3))
_OTHERS = (
    Fused(bk=32, bp=12, tk=4, tp=12, lanes="eekkk", rounds=1),
    Fused(bp=16, lanes="eekpk"),
    Fused(bk=32, lanes="eepkp"),
    Fused(tk=8, lanes="kpkkp", rounds=2),
    Fused(bk=16, bp=16, tk=8, lanes="eeekp", rounds=2),
)
# 132 blocks for (64, 56^2) at batch 1: 6.4 us, 6.7 without `overlap`, behind whose guards bias and
# residual are loaded tile by tile.
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
# Columns of a map from which patches are held only where C is in parts: ptxas's own order is 1 %
# faster at 28 columns, 2 % slower at 14.
_WIDE = 28


def portable(spec: ConvSpec) -> Fused:
    """For any GPU since sm_75, in 48 KB: what PTX for unknown GPUs is made of."""
    return Fused(bc=4, unroll=4, weights="registers")


def default(spec: ConvSpec, gpu: Gpu) -> Fused:
    """The largest tile if it fills `gpu`, else the cheapest of all tiles and parts.

    Parts make (512, 7^2) at batch 1 5.6 times as fast.
    """
    largest = _variants(LADDER[0], spec, gpu)
    if largest and _blocks(largest[0], spec) >= _FILL * gpu.sms:
        return min(largest, key=lambda c: cost(c, spec, gpu))  # few channels: thin steps
    best = [found for tile in LADDER for found in _split(tile, spec, gpu)[:1]]
    return min(best, key=lambda c: cost(c, spec, gpu), default=portable(spec))


def configs(spec: ConvSpec, gpu: Gpu) -> list[Fused]:
    """The legal configs worth trying, the default first."""
    first = default(spec, gpu)
    out = [first]
    for tile in LADDER + _ALSO_SPLIT + _OTHERS:
        few = [] if tile in _OTHERS else _split(tile, spec, gpu)[:2]
        out += [*few, *_tried(tile, spec, gpu)]
    # 8 rounds: 2 % faster at (64, 56^2), batch 128
    out += [replace(first, rounds=n) for n in (1, 8)]
    out += [c for c in _AS_MANY_AS_SMS if _ALMOST * gpu.sms <= _blocks(c, spec) <= gpu.sms]
    out += [replace(first, held=not first.held), replace(first, near=not first.near)]
    out.append(replace(first, held=not first.held, near=not first.near))
    if spec.ow % 2:  # 3 % faster at (512, 7^2), batch 128
        out.append(replace(first, weights="async", held=False, near=False, stages=3, rounds=8))
    out += NAMED.values() if spec.layout == "CHWN" else ()
    return [c for c in dict.fromkeys(out) if illegal(c, spec, gpu) is None]


def _blocks(config: Fused, spec: ConvSpec) -> int:
    z = winograd.sizes(spec, config.tiling)
    return z.kb * z.pb


def _split(tile: Fused, spec: ConvSpec, gpu: Gpu) -> list[Fused]:
    """`tile` with C whole and in parts of 1, 2, 3, ... steps, each once, cheapest first."""
    steps = ceil_div(spec.c, tile.bc)
    parts = sorted({ceil_div(steps, each) for each in range(1, steps + 1)})
    ways = [_variants(replace(tile, split_c=s), spec, gpu) for s in parts if s <= tile.max_parts]
    return sorted((w[0] for w in ways if w), key=lambda c: cost(c, spec, gpu))


def _variants(tile: Fused, spec: ConvSpec, gpu: Gpu) -> list[Fused]:
    """The legal ways to move data for one size of block and thread, best first.

    On maps of odd width whose patches are not held, registers come first: cp.async, behind which
    ptxas hides the patch's loads badly there, takes 9 % longer. In parts, whose loops are short,
    cp.async wins.
    """
    out = []
    held = _is_held(tile, spec)
    odd = spec.ow % 2 and tile.split_c == 1 and not held
    ways: tuple[Way, Way] = ("registers", "async") if odd else ("async", "registers")
    for weights in ways:
        near = held and weights == "async"  # held with registers: 8 % slower
        for bc, unroll in ((8, 8), (8, 4), (4, 4)):
            config = replace(tile, weights=weights, bc=bc, unroll=unroll, held=near, near=near)
            if illegal(config, spec, gpu) is None:
                out.append(config)
    return out


def _tried(tile: Fused, spec: ConvSpec, gpu: Gpu) -> list[Fused]:
    """`_variants` less those far from the best in fp32, where the others are legal.

    With unroll=4 the best was 4 % slower at least, with steps of 4 channels 7 %, but the fastest
    for C = 3, which they pad less.
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
