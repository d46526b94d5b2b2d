"""Which config of the fused F(4x4) kernel a convolution gets: the default, and those worth trying.

The kernel wins where F(4x4) in three kernels would move more than it computes: few channels or few
filters.
"""

from __future__ import annotations

from dataclasses import replace

from tvm_winograd.gpu import Gpu
from tvm_winograd.shapes import ConvSpec
from tvm_winograd.te import winograd
from tvm_winograd.te.common import ceil_div

from .config import FusedF4
from .cost_f4 import cost
from .legal import illegal

# The default is the cheapest of these; equal ones in this order. us at (64, 56^2), batch 128:
TILES = (
    FusedF4(bk=64, bp=16, lanes="kkkkp", rounds=1),  # 292
    FusedF4(bk=64, bp=16, lanes="kkkkp"),  # 300
    FusedF4(),  # 344
    FusedF4(bc=4, unroll=4, tk=8, tp=4, lanes="pkpkp", fragments=2),  # 83 KB: sm_86, sm_89, sm_120
    FusedF4(bp=16, tp=4, rounds=1),  # 384
)
_OTHERS = (
    FusedF4(bk=64, bp=16, tk=8, tp=4),  # 323
    FusedF4(tk=8, tp=4, lanes="ppkkp"),
    FusedF4(tk=8, tp=4, lanes="pkpkp"),
    FusedF4(buffers=2),
    FusedF4(tk=8, tp=4, lanes="ppkkp", buffers=2),
    FusedF4(rounds=1),
    FusedF4(bk=64, bp=16, tk=8, tp=4, bc=4, unroll=4),
)


def default(spec: ConvSpec, gpu: Gpu) -> FusedF4 | None:
    """The cheapest of all tiles and parts of C; None: not one is legal."""
    found = [config for tile in TILES for config in _split(tile, spec, gpu)[:1]]
    return min(found, key=lambda c: cost(c, spec, gpu), default=None)


def configs(spec: ConvSpec, gpu: Gpu) -> list[FusedF4]:
    """The legal configs worth trying, the default first."""
    first = default(spec, gpu)
    out = [first, replace(first, fragments=3 - first.fragments)] if first else []
    for tile in TILES:
        out += _split(tile, spec, gpu)[:1]
    whole = [_fit(tile, spec) for tile in TILES + _OTHERS]
    whole.append(replace(TILES[0], fragments=2))
    return list(dict.fromkeys(c for c in out + whole if illegal(c, spec, gpu) is None))


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

    Held, (512, 7^2) at batch 128 takes 360 us, 508 not held. The other layouts are not measured,
    nor steps of 4 channels, where ptxas for sm_120 spills.
    """
    if spec.layout != "NCHW" or spec.dtype != "float32" or tile.bc < 8:
        return tile
    return replace(tile, held=True, fragments=2 if tile == TILES[0] else tile.fragments)
