"""Which configs of im2win on a CPU are worth trying, the default first."""

from __future__ import annotations

from dataclasses import replace

from tvm_winograd.gpu import Cpu
from tvm_winograd.shapes import ConvSpec
from tvm_winograd.te.common import ceil_div

from ..tiles import REGISTER_TILE, pixel_tile, uneven
from .config import Im2winCpu

_LONGEST_SUM = 1280  # products: 1,152 err 6.1e-7, and it grows with the square root


def configs(spec: ConvSpec, cpu: Cpu) -> list[Im2winCpu]:
    """Those worth trying, the default first."""
    lanes, (budget, preferred) = cpu.lanes, REGISTER_TILE[cpu.vector_bits]
    out = []
    for vectors in sorted((1, 2, 4), key=lambda v: (v != preferred, v)):
        if vectors > 1 and spec.k % (vectors * lanes):
            continue
        h, w = _pixels(spec, vectors, budget)
        fused = not uneven(ceil_div(spec.n * spec.oh, h), cpu.cores)
        nhwc = spec.layout == "NHWC"
        first = Im2winCpu(lanes, vectors, h, w, nhwc, fused, _parts(spec))
        other = replace(first, channels_last=not nhwc)
        out += [first, other, *(replace(c, fused=not fused) for c in (first, other))]
    return out


def _parts(spec: ConvSpec) -> int:
    """The fewest equal parts of C whose sums are short."""
    fewest = ceil_div(spec.c * spec.r * spec.s, _LONGEST_SUM)
    return next((d for d in range(fewest, spec.c + 1) if spec.c % d == 0), spec.c)


def _pixels(spec: ConvSpec, vectors: int, budget: int) -> tuple[int, int]:
    """(h_tile, w_tile) that covers the map in the fewest cycles, then with the fewest rows."""
    return pixel_tile(spec.n * spec.oh, spec.ow, vectors, budget, then=lambda h, w: h)
