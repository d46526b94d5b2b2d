"""The fused Winograd kernel's config: sizes, what they cost, whether they are legal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tvm_winograd.gpu import Gpu, Hardware
from tvm_winograd.shapes import ConvSpec
from tvm_winograd.te import winograd
from tvm_winograd.te.common import ceil_div

from . import blocks
from .register_tile import RegisterTile, next_power

SUMMED = 64  # words of parts that a thread of the second kernel holds; more never won (H200)
V_PAD = 4  # words a channel of V, so that lanes along channels (NHWC) meet different banks
SCHEDULERS = 4  # of an SM, each with a quarter of its registers
PREFETCH = ("before", "after", "off")


@dataclass(frozen=True)
class FusedTile(RegisterTile):
    """Sizes of a block and a thread, and how data moves; benchmarks/ablation.py has their worth."""

    m: ClassVar[int]  # F(m x m, 3 x 3)

    bk: int = 64  # filters a block
    bp: int = 32  # output tiles a block
    bc: int = 8  # channels a step
    tk: int = 16  # filters a thread
    tp: int = 8  # output tiles a thread
    # What the lane bits count, high to low: (e)ps/nu, (k) filters, (p) tiles. U's address ignores
    # the p bits, V's the k bits: with bit 0 a p and bit 1 a k a 16-byte shared load takes two
    # wavefronts instead of four (428 -> 392 us at (128, 256, 14^2), H200, 2026-11-30).
    lanes: str = "epkkp"
    weights: str = "async"  # how U reaches shared memory: "async" (cp.async) or "registers"
    rounds: int = 4  # of the output transform; divides tk, and the shared memory of M
    # Channels of a step in straight-line code: 350, not 369 us at (128, 28^2) with all 8; float16
    # at (64, 56^2) takes 400, not 451 with 4, as ptxas then does not sink the next patch's loads.
    unroll: int = 8
    # Parts of C, on blockIdx.z: each computes its own output tiles, a second kernel sums them.
    split_c: int = 1
    # (eps, nu) a thread. With 2 of 8x8 accumulators a channel takes 8 shared loads of 16 bytes,
    # with 1 of 16x8 it takes 6.
    points: int = 1
    # Where the next step's global loads stand: "before" this step's arithmetic, "after" it
    # (openCNN's algorithm 1; the compiler may move them), or "off": in the next step.
    prefetch: str = "before"
    # Of V in shared memory; U has as many, one more with cp.async. 2: a step's operands are written
    # while those of the step before are read.
    buffers: int = 1
    copy: int = 4  # words of U a thread copies at once
    # held_loads.py: patches are loaded before the arithmetic, and addresses of cp.async are an
    # immediate apart. 447, not 500 us at (512, 7^2), but 372, not 368 at (64, 56^2), batch 128.
    held: bool = False
    near: bool = False
    # Words of a load from shared memory to a thread's operands, which are neighbours.
    fragment: int = 4
    fragments: int = 1  # 2: a channel's operands are loaded during the arithmetic of the one before
    # How M goes through shared memory (winograd_fused_output.py; openCNN's output transform):
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
        """Of C, all in a thread of the second kernel at once."""
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
        """Of the kernel: U and V of the main loop, or M's rounds, which take their place."""
        u_buffers = self.buffers + (self.weights == "async")
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
        return winograd.Tiling(self.m, k_tile, p_tile, self.bc * self.split_c, channel_outer=True)


@dataclass(frozen=True)
class Fused(FusedTile):
    """F(2x2, 3x3)."""

    m = 2


@dataclass(frozen=True)
class FusedF4(FusedTile):
    """F(4x4, 3x3): 12 warps, three a scheduler, with three of the 36 points each.

    9 or 18 warps would be three on one scheduler and two on others, with as few registers a thread:
    168 or 96. 12 have 168 too, for 96 accumulators, 12 operands, 36 words of the next patch.
    """

    m = 4
    bk: int = 32
    tk: int = 4
    lanes: str = "kpkkp"
    points: int = 3
    rounds: int = 2
    min_blocks: int = 1  # not said, ptxas spills two registers with tk=8


def illegal(config: FusedTile, spec: ConvSpec, hw: Hardware) -> str | None:
    """None, or why `config` cannot run `spec` on `hw`."""
    if not isinstance(hw, Gpu):
        return f"a CUDA kernel, got a {hw.kind} target"
    if reason := _malformed(config) or _bad_output(config, spec.layout):
        return reason
    if config.weights == "async" and not hw.has_async_copy:
        return f'weights="async" needs cp.async (sm_80 or newer), got {hw.arch}'
    if config.held and spec.dtype != "float32":
        return f"held: patches of float32 only, got {spec.dtype}"
    if config.shared_bytes > hw.shared_per_block:
        return f"{config.shared_bytes} bytes of shared memory; {hw.arch} has {hw.shared_per_block}"
    needed = config.accumulators + _other_registers(config)
    threads = config.threads * max(1, config.min_blocks)
    # of the fullest scheduler
    each = ceil_div(threads, SCHEDULERS * hw.warp) * SCHEDULERS * hw.warp
    available = min(hw.max_registers, hw.registers_per_sm // each)
    if needed > available:
        return f"about {needed} registers a thread; {threads} threads may have {available}"
    z = winograd.sizes(spec, config.tiling)
    if z.kb > 65535:
        return f"{z.kb} blocks of filters; a grid has at most 65535"
    u = config.all_points * z.c_pad * z.kb * z.bk
    tiles = config.split_c * z.kb * z.bk * z.pb * z.bp * config.m**2
    if reason := blocks.too_large(max(u, tiles), u if config.weights == "async" else 0):
        return reason
    return _bad_steps(config, spec)


def _bad_steps(config: FusedTile, spec: ConvSpec) -> str | None:
    """None, or why C of `spec` cannot be split, and walked through, like that."""
    if config.split_c > config.max_parts:
        return f"split_c={config.split_c}: a thread sums at most {config.max_parts} parts"
    if config.tiles > 1 and config.split_c > 1:
        return f"tiles={config.tiles}: with split_c a thread stores one tile, 16 bytes, at once"
    steps = ceil_div(spec.c, config.bc)
    if (config.split_c - 1) * (each := ceil_div(steps, config.split_c)) >= steps:
        return f"split_c={config.split_c}: {steps} steps of {config.bc} channels leave a part empty"
    if each == 1 and config.buffers > 1 and config.weights == "async":  # no TVM pass takes it
        return f"buffers={config.buffers}: one step of {config.bc} channels has none ahead of it"
    return None


def _malformed(config: FusedTile) -> str | None:
    """None, or why the sizes of `config` do not fit each other, whatever the GPU."""
    if reason := config.malformed_tile("bc", "rounds", "unroll", "split_c"):
        return reason
    allowed = [n for n in (1, 2, 3, 4, 6) if config.all_points % n == 0]
    if config.points not in allowed:
        return f"points={config.points}: {', '.join(map(str, allowed))} (eps, nu) a thread"
    if config.bc % config.patches:
        return f"bc={config.bc}: channels for {config.patches} turns of a step's patches"
    want = [config.lane_e, config.lane_k, config.lane_p]
    if [2 ** config.lanes.count(ch) for ch in "ekp"] != want or len(config.lanes) != 5:
        return f"lanes={config.lanes!r}: 5 bits for e, k, p = {want[0]}, {want[1]}, {want[2]}"
    for name in ("copy", "fragment", "stores"):
        if (words := getattr(config, name)) not in (1, 2, 4):
            return f"{name}={words}: 1, 2 or 4 words"
    if config.bc * config.all_points * config.bk % (config.copy * config.threads):
        return f"bc={config.bc}: {config.threads} threads cannot share a step's weights evenly"
    if config.bc % config.unroll:
        return f"unroll={config.unroll} does not divide bc={config.bc}"
    for name in ("buffers", "fragments", "m_buffers"):
        if (count := getattr(config, name)) not in (1, 2):
            return f"{name}={count}: 1 or 2 buffers"
    return _bad_pipeline(config)


def _bad_pipeline(config: FusedTile) -> str | None:
    if config.weights not in ("async", "registers"):
        return f'weights={config.weights!r}: "async" or "registers"'
    if config.weights == "registers" and config.m > 2:
        return 'weights="registers": a thread\'s share of 36 points is no array; F(4x4) has "async"'
    if config.prefetch not in PREFETCH:
        return f"prefetch={config.prefetch!r}: there are {', '.join(PREFETCH)}"
    if config.prefetch != "before" and config.weights == "async":
        return f'prefetch={config.prefetch!r} needs weights="registers": cp.async is a prefetch'
    if config.prefetch == "off" and config.buffers > 1:
        return 'buffers=2 needs a prefetch: with prefetch="off" nothing is written ahead'
    if config.near and config.weights != "async":
        return f'near=True needs weights="async", got {config.weights!r}'
    if config.fragments > 1 and config.unroll == 1:
        return "fragments=2 needs unroll > 1: the next channel is in the same straight-line code"
    if config.min_blocks < 0:
        return f"min_blocks={config.min_blocks}: 0 (not said) or more blocks"
    return None


def _bad_output(config: FusedTile, layout: str) -> str | None:
    """None, or why M cannot go through shared memory like that."""
    outer, width = config.tk // config.fragment, config.fragment
    if outer % config.rounds and (config.rounds % outer or width % (config.rounds // outer)):
        return f"rounds={config.rounds} does not divide {outer} x {width} filters a thread"
    if config.stores > config.fragment:
        return f"stores={config.stores}: a thread has {config.fragment} neighbours (fragment)"
    if config.tiles not in (1, 2) or config.loads not in (1, 2) or config.loads > config.tiles:
        return f"tiles={config.tiles}, loads={config.loads}: 1 or 2, and no wider load than tiles"
    if config.loads > config.stores:
        return f"loads={config.loads}: neighbours lie apart with stores={config.stores}"
    pairs = (config.stores, config.fragment) == (2, 4) and config.lane_k % config.beside == 0
    if config.every_second and not pairs:
        return (
            f"tiles=2, loads=1: needs stores=2 of fragment=4 (every second tile) and a multiple of "
            f"{config.beside} lanes along filters, got {config.lane_k}"
        )
    if layout == "NHWC" and (config.relaid or config.fragment < 4):
        return "fragment < 4, stores < 4 and compact are for lanes along tiles, not NHWC"
    if config.compact and config.bp < blocks.WARP:
        return f"compact: a row of M must fill {blocks.WARP} banks, got bp={config.bp}"
    return None


def _other_registers(config: FusedTile) -> int:
    """Beside the accumulators: fragments, data in flight, addresses (ptxas, sm_75 to sm_120)."""
    patches = config.patches * config.all_points
    weights = ceil_div(config.bc * config.all_points * config.bk, config.threads)
    in_flight = patches + (weights if config.weights == "registers" else 0)
    operands = (1 if config.by_point else config.points) * (config.tk + config.tp)
    return operands + in_flight + 24
