"""Which configs of Winograd on a CPU are worth trying, the default first."""

from __future__ import annotations

from tvm_winograd.gpu import Cpu
from tvm_winograd.shapes import ConvSpec
from tvm_winograd.te import winograd
from tvm_winograd.te.common import ceil_div

from ..tiles import FMA_LATENCY, REGISTER_TILE, uneven
from .config import WinogradCpuConfig
from .legal import illegal


def configs(spec: ConvSpec, cpu: Cpu) -> list[WinogradCpuConfig]:
    """The legal configs worth trying, the default first."""
    return [c for c in tried(spec, cpu) if illegal(c, spec, cpu) is None]


def tried(spec: ConvSpec, cpu: Cpu) -> list[WinogradCpuConfig]:
    """The same, whether legal or not."""
    lanes, (budget, preferred) = cpu.lanes, REGISTER_TILE[cpu.vector_bits]
    p = winograd.sizes(spec, winograd.Tiling()).p
    if p * preferred < FMA_LATENCY:
        preferred = 4
    out = []
    for vectors in sorted((1, 2, 4), key=lambda v: (v != preferred, v)):
        if vectors > 1 and spec.k % (vectors * lanes):
            continue
        p_tile, balanced = _tiles(p, budget // vectors, cpu.cores)
        for fused in (balanced, not balanced):
            out.append(WinogradCpuConfig(lanes, vectors, p_tile, fused))
    return out


def _tiles(p: int, most: int, cores: int) -> tuple[int, bool]:
    """(p_tile <= most in the fewest blocks, whether the blocks alone keep the cores busy).

    A few more, smaller blocks are taken if that gives every core as many: `fused` halves the time
    of 256 channels, 28x28.
    """
    blocks = ceil_div(p, most)
    if blocks < cores:
        return ceil_div(p, blocks), False
    rounds = ceil_div(blocks, cores)
    p_tile = ceil_div(p, rounds * cores)
    if p_tile < 0.75 * ceil_div(p, blocks):
        return ceil_div(p, blocks), not uneven(blocks, cores)
    return p_tile, True


def not_worth(spec: ConvSpec, cpu: Cpu) -> str | None:
    """None, or why the direct kernel is the better choice.

    With 3 channels it takes 27 % longer; from 8 on Winograd won on every map from 4x4 to 112x112.
    """
    if spec.c < 8:
        return f"the input transform costs more than it saves with {spec.c} channels (from 8 on)"
    return None
