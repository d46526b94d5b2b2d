"""The knobs of im2win on a CPU, and the sizes that follow from them."""

from __future__ import annotations

from dataclasses import dataclass

from tvm_winograd.shapes import ConvSpec
from tvm_winograd.te import im2win
from tvm_winograd.te.common import ceil_div


@dataclass(frozen=True)
class Im2winCpu:
    """Knobs of the im2win CPU schedule."""

    lanes: int  # filters of one vector register
    k_vectors: int  # vectors of filters in the register tile
    h_tile: int  # output rows of the register tile
    w_tile: int  # output columns of the register tile
    channels_last: bool  # windows as (s, r, c), else c planes of (s, r)
    fused: bool  # windows of h_tile rows at a time, inside the parallel loop; else all before it
    parts: int = 1  # of C, summed one by one

    def tiling(self, spec: ConvSpec) -> im2win.Tiling:
        channels = ceil_div(spec.c, self.parts) if self.channels_last else 1
        return im2win.Tiling(
            (self.lanes * self.k_vectors,), (self.h_tile,), (self.w_tile,), channels,
            parts=self.parts, channels_last=self.channels_last,
        )  # fmt: skip

    @property
    def accumulators(self) -> int:
        """Vector registers that hold sums."""
        return self.h_tile * self.w_tile * self.k_vectors

    def workspace_bytes(self, spec: ConvSpec) -> int:
        """Memory of the windows; of each thread when `fused`."""
        z = im2win.sizes(spec, self.tiling(spec))
        return 4 * z.workspace // (z.hb if self.fused else 1)


def workspace(config: Im2winCpu, spec: ConvSpec) -> int:
    """Bytes of the windows, unless each tile's are made where they are used."""
    return 0 if config.fused else config.workspace_bytes(spec)
