"""The knobs of Winograd F(4x4) in three kernels, and the sizes that follow from them."""

from __future__ import annotations

from dataclasses import dataclass

from tvm_winograd.te import winograd

from ..base import blocks
from ..base.register_tile import RegisterTile, Way

POINTS = 36  # (eps, nu) pairs of F(4x4, 3x3)
STORE_PAD = 4  # words behind a 4x4 tile in shared memory, so that 8 tiles' rows meet all banks
K_PAD = 4  # words behind a filter's tiles there: lanes along filters (NHWC) meet different banks


@dataclass(frozen=True)
class Staged(RegisterTile):
    """Sizes of one block and one thread of each kernel, and how data moves."""

    # The GEMM, one (eps, nu) a block.
    bk: int = 64  # filters a block
    bp: int = 64  # output tiles a block
    bc: int = 8  # channels a step
    tk: int = 8  # filters a thread
    tp: int = 8  # output tiles a thread
    # What the lane bits count, high to low: (k) filters, (p) tiles; the warps of a block share
    # the rest. U's address ignores the p bits, V's the k bits: with bit 0 a p and bit 1 a k a
    # 16-byte shared load takes two wavefronts instead of four ("ppkkp": 1 to 4 % slower).
    lanes: str = "pkpkp"
    copies: Way = "async"  # how U and V reach shared memory: "async" is cp.async
    buffers: int = 4  # of U and V in shared memory; 1 with "registers"
    # The transforms.
    threads: int = 256  # a block
    patches: int = 2  # input patches a thread
    # Output tiles a thread. With `row` each of its elements waits for its residual in turn: 2 tiles
    # take 1.7 times as long as one.
    tiles: int = 1
    # 0: a thread stores the tile it computed. Else tiles go through shared memory, and neighbouring
    # threads store neighbouring elements of rows of this many tiles.
    row: int = 0
    # The three kernels run once for each of `chunks` equal parts of the tiles, which divides the
    # memory of V and M. Two chunks take 4 % longer than one.
    chunks: int = 1

    @property
    def gemm_threads(self) -> int:
        return self.lane_k * self.lane_p

    @property
    def warps(self) -> int:
        """Warps of a GEMM block."""
        return self.gemm_threads // blocks.WARP

    @property
    def channels(self) -> int:
        """Channels of an input transform block, with `bp` tiles each."""
        return self.patches * self.threads // self.bp

    @property
    def filters(self) -> int:
        """Filters of an output transform block, with `bp` tiles each."""
        return self.tiles * self.threads // self.bp

    @property
    def shared_bytes(self) -> int:
        """Bytes a block needs, in the kernel that needs most."""
        gemm = self.buffers * self.bc * (self.bk + self.bp)
        output = self.filters * (self.bp * (16 + STORE_PAD) + 32) if self.row else 0
        return 4 * max(gemm, output)

    @property
    def tiling(self) -> winograd.Tiling:
        k_tile, p_tile = (self.tk // 4, self.lane_k, 4), (self.tp // 4, self.lane_p, 4)
        return winograd.Tiling(4, k_tile, p_tile, self.bc, channel_outer=False)
