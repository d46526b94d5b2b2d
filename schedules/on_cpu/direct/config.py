"""The knobs of direct convolution on a CPU, and the sizes that follow from them."""

from __future__ import annotations

from dataclasses import dataclass

from tvm_winograd.shapes import ConvSpec
from tvm_winograd.te import direct
from tvm_winograd.te.common import ceil_div


@dataclass(frozen=True)
class DirectCpuConfig:
    """Knobs of the direct CPU schedule."""

    lanes: int  # filters (or, for depthwise, pixels) of one vector register, elements
    k_vectors: int  # vectors of filters in the register tile
    h_tile: int  # output rows of the register tile
    w_tile: int  # output columns of the register tile; pixels when flat
    flat: bool  # the map is one row of oh*ow pixels: 1x1, stride 1, no padding only
    # filter blocks in the outermost loop: parallel over (n, k, tiles), of depthwise over (n, k)
    k_outer: bool
    c_chunk: int = 0  # channels of one running sum, sums of sums after that; 0: a single one
    depthwise: bool = False  # lanes run along w, k_tile is 1; a channel's padded map lies in cache
    apart: int = 1  # depthwise: columns of the padded map with one remainder by it are neighbours

    @property
    def tiling(self) -> direct.Tiling:
        k_tile = 1 if self.depthwise else self.lanes * self.k_vectors
        row = self.lanes if self.depthwise else 1
        tile = (k_tile, self.h_tile, self.w_tile)
        return direct.Tiling(*tile, self.flat, True, True, self.c_chunk, self.apart, row)

    @property
    def accumulators(self) -> int:
        """Vector registers that hold sums."""
        pixels = self.h_tile * self.w_tile
        rows = self.h_tile * ceil_div(self.w_tile, self.lanes)
        return rows if self.depthwise else pixels * self.k_vectors


def workspace(config: DirectCpuConfig, spec: ConvSpec) -> int:
    """Bytes of the padded or converted input, where one pass makes all of it."""
    z = direct.sizes(spec, config.tiling)
    h, w = (1, spec.h * spec.w) if config.flat else (spec.h, spec.w)
    as_it_is = max(spec.padding) == 0 and z.hp <= h and z.wp <= w and spec.dtype == spec.acc
    whole = config.k_outer and not config.depthwise and not as_it_is
    return 4 * spec.n * spec.c * z.hp * z.wp if whole else 0
