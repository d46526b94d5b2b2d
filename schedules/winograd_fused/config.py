"""The knobs of the fused Winograd kernels, and the sizes that follow from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from tvm_winograd.te import winograd
from tvm_winograd.te.common import ceil_div

from ..base import blocks
from ..base.register_tile import RegisterTile, Way, next_power

SUMMED = 64  # words of parts that a thread of the second kernel holds; more never won (H200)
V_PAD = 4  # words a channel of V, so that lanes along channels (NHWC) meet different banks
SCHEDULERS = 4  # of an SM, each with a quarter of its registers
Prefetch = Literal["before", "after", "off"]


@dataclass(frozen=True)
class FusedTile(RegisterTile):
    """Sizes of a block and a thread, and how data moves; benchmarks/ablation.py has their worth."""

    m: ClassVar[int]  # F(m x m, 3 x 3)

    bk: int = 64  # filters a block
    bp: int = 32  # output tiles a block
    bc: int = 8  # channels a step
    tk: int = 16  # filters a thread
    tp: int = 8  # output tiles a thread
    # The last block of tiles starts early enough to be whole: it shares some with the one before,
    # both store them, bit by bit the same, and neither loads nor stores need guards.
    overlap: bool = False
    # What the lane bits count, high to low: (e)ps/nu, (k) filters, (p) tiles. U's address ignores
    # the p bits, V's the k bits: with bit 0 a p and bit 1 a k a 16-byte shared load takes two
    # wavefronts instead of four, which takes 8 % off the whole kernel.
    lanes: str = "epkkp"
    weights: Way = "async"  # how U reaches shared memory: "async" is cp.async
    rounds: int = 4  # of the output transform; divides tk, and the shared memory of M
    # Channels of a step in straight-line code. All 8 are best (5 % over 4), unless ptxas then
    # sinks the next patch's loads to the end of the step, where their latency is bare (float16).
    unroll: int = 8
    # Parts of C, on blockIdx.z: each computes its own output tiles, a second kernel sums them.
    split_c: int = 1
    # (eps, nu) a thread. With 2 of 8x8 accumulators a channel takes 8 shared loads of 16 bytes,
    # with 1 of 16x8 it takes 6.
    points: int = 1
    # Where the next step's global loads stand: "before" this step's arithmetic, "after" it
    # (openCNN's algorithm 1; the compiler may move them), or "off": in the next step.
    prefetch: Prefetch = "before"
    # Of V in shared memory; U has as many, with cp.async `stages` - 1 more. 2: a step's operands
    # are written while those of the step before are read.
    buffers: int = 1
    stages: int = 2  # of cp.async: U is copied one step fewer ahead
    copy: int = 4  # words of U a thread copies at once
    # codegen/held_loads.py: patches are loaded before the arithmetic, and addresses of cp.async are
    # an immediate apart. 11 % off at (512, 7^2), batch 128, but 1 % on top at (64, 56^2).
    held: bool = False
    near: bool = False
    # Words of a load from shared memory to a thread's operands, which are neighbours.
    fragment: int = 4
    fragments: int = 1  # 2: a channel's operands are loaded during the arithmetic of the one before
    # How M goes through shared memory (output.py; openCNN's output transform):
    stores: int = 4  # words of a store
    loads: int = 1  # words of a load
    tiles: int = 1  # neighbouring output tiles that a thread transforms at once
    compact: bool = False  # rows of M turned against each other instead of padded
    m_buffers: int = 1  # of M, each of one round; 2: a round is written while one is read
    # Blocks that an SM must be able to hold (__launch_bounds__): caps registers. 0: not said.
    min_blocks: int = 0

    @property
    def all_points(self) -> int:
        """(eps, nu) pairs of a tile."""
        return (self.m + 2) ** 2

    @property
    def max_parts(self) -> int:
        """Parts of C, at most: a thread of the second kernel holds all of them at once."""
        return SUMMED // self.m**2

    @property
    def lane_e(self) -> int:
        """(eps, nu) pairs of a warp, one a lane."""
        return blocks.WARP // (self.lane_k * self.lane_p)

    @property
    def threads(self) -> int:
        return self.all_points // self.points * self.lane_k * self.lane_p

    @property
    def warps(self) -> int:
        return self.threads // blocks.WARP

    @property
    def by_point(self) -> bool:
        """A thread loads its operands point by point, not all of a channel at once."""
        return self.points > 2

    @property
    def accumulators(self) -> int:
        return self.points * self.tk * self.tp

    @property
    def patches(self) -> int:
        """Input patches a thread and step, at most; lanes count a power of two of tiles."""
        return ceil_div(self.bc * next_power(self.bp), self.threads)

    @property
    def idle_threads(self) -> bool:
        """Some threads have no patch."""
        return self.patches * self.threads != self.bc * self.bp

    @property
    def every_second(self) -> bool:
        """A store of M takes every second tile: two loads of a word then give two neighbours."""
        return self.tiles > self.loads

    @property
    def relaid(self) -> bool:
        """M in shared memory is not laid out as in registers."""
        return self.stores < self.fragment or self.compact

    @property
    def beside(self) -> int:
        """Filters whose words lie side by side in a row of 32 banks."""
        return max(1, 2 * blocks.WARP // self.bp) if self.every_second else 1

    @property
    def skew(self) -> int:
        """Words by which the rows of filters are apart, so that a store meets each bank once.

        The 32 / stores lanes that store together write this many neighbouring words of a row.
        """
        together = (blocks.WARP // self.stores).bit_length() - 1
        return self.stores * 2 ** self.lanes[len(self.lanes) - together :].count("p")

    @property
    def shared_bytes(self) -> int:
        """Bytes a block needs: U and V of the main loop, or M's rounds, which take their place."""
        u_buffers = self.buffers + (self.stages - 1) * (self.weights == "async")
        u = u_buffers * self.bc * self.all_points * self.bk
        v = self.buffers * self.bc * (self.all_points * self.bp + V_PAD)
        filters = self.bk // self.rounds
        if self.relaid:
            pad = 0 if self.compact else self.skew
            m = filters * self.bp + filters // self.beside * pad
        else:
            m = max(filters * (self.bp + 4), filters * self.bp + self.lane_k * self.skew)
        return 4 * max(u + v, self.m_buffers * self.all_points * m)

    @property
    def tiling(self) -> winograd.Tiling:
        width = self.fragment
        k_tile = (self.tk // width, self.lane_k, width)
        p_tile = (self.tp // width, self.lane_p, width)
        c_tile = self.bc * self.split_c
        return winograd.Tiling(self.m, k_tile, p_tile, c_tile, overlap=self.overlap)


@dataclass(frozen=True)
class Fused(FusedTile):
    """F(2x2, 3x3)."""

    m = 2


@dataclass(frozen=True)
class FusedF4(FusedTile):
    """F(4x4, 3x3): 12 warps, three a scheduler, with three of the 36 points each.

    A thread of 12 warps may have 168 registers: 96 accumulators, 12 operands, 36 words of the next
    patch, and addresses.
    """

    m = 4
    bk: int = 32
    tk: int = 4
    lanes: str = "kpkkp"
    points: int = 3
    rounds: int = 2
    min_blocks: int = 1  # not said, ptxas spills two registers with tk=8
