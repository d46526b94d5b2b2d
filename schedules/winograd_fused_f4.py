"""Which config of the fused F(4x4) kernel a convolution gets: the default, and those worth trying.

None is measured yet: they were chosen by their machine code (docs/schedules.md).
"""

from __future__ import annotations

from dataclasses import replace

from tvm_winograd.gpu import Gpu, Hardware
from tvm_winograd.shapes import ConvSpec
from tvm_winograd.te import winograd
from tvm_winograd.te.common import ceil_div

from .winograd_fused_config import FusedF4, illegal
from .winograd_fused_default import cost

# The default is the cheapest of these, by the estimate of F(2x2); equal ones in this order.
TILES = (
    FusedF4(),
    FusedF4(bk=64, bp=16, tk=8, tp=4),  # half the transforms, more of U from L2
    FusedF4(bc=4, unroll=4, tk=8, tp=4, lanes="pkpkp", fragments=2),  # 83 KB: sm_86, sm_89, sm_120
    FusedF4(bp=16, tp=4, rounds=1),
)
_OTHERS = (
    FusedF4(tk=8, tp=4, lanes="ppkkp"),
    FusedF4(tk=8, tp=4, lanes="pkpkp"),
    FusedF4(buffers=2),
    FusedF4(tk=8, tp=4, lanes="ppkkp", buffers=2),
    FusedF4(rounds=1),
    FusedF4(bk=64, bp=16, lanes="kkkkp"),
    FusedF4(bk=64, bp=16, tk=8, tp=4, bc=4, unroll=4),
)


def default(spec: ConvSpec, gpu: Gpu) -> FusedF4 | None:
    """The cheapest of all tiles and parts of C; None: not one is legal."""
    found = [config for tile in TILES for config in _split(tile, spec, gpu)[:1]]
    return min(found, key=lambda c: cost(c, spec, gpu), default=None)


def configs(spec: ConvSpec, hw: Hardware) -> list[FusedF4]:
    """The legal configs worth trying, the default first."""
    assert isinstance(hw, Gpu)
    first = default(spec, hw)
    out = [first] if first else []
    for tile in TILES:
        out += _split(tile, spec, hw)[:1]
    whole = [tile for tile in TILES + _OTHERS if illegal(tile, spec, hw) is None]
    return list(dict.fromkeys(out + whole))


def _split(tile: FusedF4, spec: ConvSpec, gpu: Gpu) -> list[FusedF4]:
    """`tile` with C whole, and in parts where that leaves SMs without a block; cheapest first."""
    z, steps = winograd.sizes(spec, tile.tiling), ceil_div(spec.c, tile.bc)
    most = min(steps, tile.max_parts) if z.kb * z.pb < gpu.sms else 1
    ways = [replace(tile, split_c=n) for n in range(1, most + 1)]
    legal = [config for config in ways if illegal(config, spec, gpu) is None]
    return sorted(legal, key=lambda c: cost(c, spec, gpu))
