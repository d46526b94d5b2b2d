"""The knobs of Winograd F(2x2) on a CPU, and the sizes that follow from them."""

from __future__ import annotations

from dataclasses import dataclass

from tvm_winograd.shapes import ConvSpec
from tvm_winograd.te import winograd


@dataclass(frozen=True)
class WinogradCpuConfig:
    """Knobs of the CPU Winograd schedule."""

    lanes: int  # filters of one vector register, elements
    k_vectors: int  # vectors of filters in the register tile
    p_tile: int  # output tiles of the register tile
    fused: bool  # parallel over blocks of tiles, V made inside; else V first, then parallel over
    # (blocks of filters, blocks of tiles), so that a core's part of U stays in its cache

    @property
    def tiling(self) -> winograd.Tiling:
        return winograd.Tiling(
            2, (self.lanes * self.k_vectors,), (self.p_tile,), channel_outer=False
        )

    @property
    def accumulators(self) -> int:
        """Vector registers that hold sums."""
        return self.p_tile * self.k_vectors


def workspace(config: WinogradCpuConfig, spec: ConvSpec) -> int:
    """Bytes of V, unless each tile's is made where it is used."""
    z = winograd.sizes(spec, config.tiling)
    points = (config.tiling.m + 2) ** 2
    return 0 if config.fused else 4 * points * z.c_pad * z.pb * z.bp
