"""The knobs of the matrix product kernels, and the sizes that follow from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tvm_winograd.te import gemm

from ..base import blocks
from ..base.register_tile import RegisterTile, Way

# Words behind a product of B in shared memory, so that lanes along channels (NHWC), which write
# 4 pixels each, meet different banks.
ROW_PAD = 4

Gathered = Literal["async16", "async4", "registers"]
Inputs = Literal["async16", "async4", "registers", "workspace"]
Store = Literal["pixels", "filters", "words"]


@dataclass(frozen=True)
class Product(RegisterTile):
    """Sizes of one block and one thread, and how data moves: what both configs have."""

    bk: int = 64  # filters a block
    bp: int = 64  # output pixels a block
    bc: int = 8  # products a step
    tk: int = 8  # filters a thread
    tp: int = 8  # output pixels a thread
    # What the lane bits count, high to low: (k) filters, (p) pixels; the warps of a block share
    # the rest. A's address ignores the p bits, B's the k bits: with bit 0 a p and bit 1 a k a
    # 16-byte shared load takes two wavefronts instead of four.
    lanes: str = "pkpkp"
    weights: Way = "async"  # how A reaches shared memory: "async" is cp.async
    # How B does: "async16" (cp.async of 4 neighbouring pixels), "async4" (of one word, zero
    # outside the map), "registers" (any dtype), or "workspace" (like A, behind im2col).
    inputs: Inputs = "async4"
    buffers: int = 4  # of a step in shared memory; 2 with inputs, 1 with weights in registers
    # What a thread's 16-byte store holds: "pixels" (NCHW, CHWN), "filters" (NHWC); or "words".
    store: Store = "words"
    # The reduction counts (c, r, s), so that a step's taps are constants if r * s (or s) divides
    # bc; else (r, s, c), where a step is one tap, its address and its guard the same for all c.
    taps_inner: bool = False
    parts: int = 1  # of the reduction, on blockIdx.y; a second kernel sums them

    @property
    def threads(self) -> int:
        return self.lane_k * self.lane_p

    @property
    def warps(self) -> int:
        return self.threads // blocks.WARP

    @property
    def shared_bytes(self) -> int:
        """Bytes a block of the product kernel needs, at most: only NHWC pads the rows of B."""
        of_b = 1 if self.inputs == "registers" else self.buffers
        return 4 * self.bc * (self.buffers * self.bk + of_b * (self.bp + ROW_PAD))

    @property
    def tiling(self) -> gemm.Tiling:
        k_tile, p_tile = (self.tk // 4, self.lane_k, 4), (self.tp // 4, self.lane_p, 4)
        vector = self.store == "pixels"
        return gemm.Tiling(k_tile, p_tile, self.bc, self.parts, self.taps_inner, vector)


@dataclass(frozen=True)
class Implicit(Product):
    """B is gathered from the input by the blocks that multiply it."""

    inputs: Gathered = "async4"


@dataclass(frozen=True)
class Im2col(Product):
    """B is gathered into device memory by a kernel of its own."""

    inputs: Literal["workspace"] = "workspace"
