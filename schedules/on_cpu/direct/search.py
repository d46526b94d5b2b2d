"""Which configs of direct convolution on a CPU are worth trying, the default first."""

from __future__ import annotations

from dataclasses import replace

from tvm_winograd.gpu import Cpu
from tvm_winograd.shapes import ConvSpec
from tvm_winograd.te import direct
from tvm_winograd.te.common import ceil_div

from ..tiles import REGISTER_TILE, pixel_tile, uneven
from .config import DirectCpuConfig
from .legal import illegal

_CHUNK = 256  # channels of one running sum, at most


def configs(spec: ConvSpec, cpu: Cpu) -> list[DirectCpuConfig]:
    """The legal configs worth trying, the default first."""
    return [c for c in tried(spec, cpu) if illegal(c, spec, cpu) is None]


def tried(spec: ConvSpec, cpu: Cpu) -> list[DirectCpuConfig]:
    """The same, whether legal or not."""
    if spec.groups > 1 and _filter_lanes(spec, cpu) == 1:
        return _depthwise(spec, cpu)
    lanes, flat = _filter_lanes(spec, cpu), direct.can_flatten(spec)
    budget, preferred = REGISTER_TILE[cpu.vector_bits]
    out = []
    for vectors in sorted((1, 2, 4), key=lambda v: (v != preferred, v)):
        if vectors > 1 and (spec.k // spec.groups) % (vectors * lanes):
            continue
        h, w = _pixels(spec, vectors, budget, flat)
        config = DirectCpuConfig(lanes, vectors, h, w, flat, False, _chunk(spec))
        z = direct.sizes(spec, config.tiling)
        first = uneven(spec.n * z.hb * z.wb, cpu.cores)
        out += [replace(config, k_outer=k_outer) for k_outer in (first, not first)]
    return out


def _depthwise(spec: ConvSpec, cpu: Cpu) -> list[DirectCpuConfig]:
    """Lanes along rows; of several rows, so that their sums hide an FMA's latency."""
    apart = spec.strides[1] if spec.layout == "NCHW" else 1
    rows = sorted((1, 2, 4, 7, 8), key=lambda h: (ceil_div(spec.oh, h) * h, abs(h - 4)))
    first = DirectCpuConfig(
        cpu.lanes, 1, 1, cpu.lanes, False, True, depthwise=True, apart=apart
    )  # fmt: skip
    return [replace(first, h_tile=h) for h in rows]


def _filter_lanes(spec: ConvSpec, cpu: Cpu) -> int:
    """Filters of one vector: as many as the group has, at most the vector's lanes."""
    lanes = cpu.lanes
    if spec.groups == 1:
        return lanes
    while (spec.k // spec.groups) % lanes:
        lanes //= 2
    return lanes


def _chunk(spec: ConvSpec) -> int:
    """Channels of one running sum: the largest divisor of at most 256; 0 when it is not worth it.

    The rounding error of a running sum grows with its length: one sum of 4,608 products errs 3.8
    times as much as 18 sums of 256, at the same speed. Two sums of 256 would be slow: LLVM unrolls
    that loop and spills.
    """
    per_group = spec.c // spec.groups
    best = max(d for d in range(1, min(per_group, _CHUNK) + 1) if per_group % d == 0)
    return best if best >= 32 and per_group * spec.r * spec.s > 4 * _CHUNK else 0


def _pixels(spec: ConvSpec, vectors: int, budget: int, flat: bool) -> tuple[int, int]:
    """(h_tile, w_tile) that covers the map in the fewest cycles, then with the least input."""
    oh, ow = (1, spec.oh * spec.ow) if flat else (spec.oh, spec.ow)

    def halo(h: int, w: int) -> int:
        return (h * spec.strides[0] + spec.r - 1) * (w * spec.strides[1] + spec.s - 1)

    return pixel_tile(oh, ow, vectors, budget, then=halo)
