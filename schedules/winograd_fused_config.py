"""The fused Winograd kernel's config: sizes, what they cost, whether they are legal, defaults."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tvm_winograd.gpu import Gpu, Hardware
from tvm_winograd.shapes import ConvSpec
from tvm_winograd.te import winograd
from tvm_winograd.te.common import ceil_div

from . import blocks
from .register_tile import RegisterTile

_POINTS = 16  # (eps, nu) pairs of F(2x2, 3x3)
_PORTABLE_SHARED = 48 * 1024  # bytes every CUDA GPU gives a block without opting in
MAX_PARTS = 16  # of C, all in a thread of the second kernel at once; more never won (H200)
V_PAD = 4  # words a channel of V, so that lanes along channels (NHWC) meet different banks


@dataclass(frozen=True)
class Fused(RegisterTile):
    """Sizes of one block and one thread, and how data moves."""

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
    rounds: int = 4  # of the output transform; divides tk/4 and the shared memory of M
    # Channels of a step in straight-line code. All 8 are best (350, not 369 us at (128, 28^2)),
    # unless ptxas then sinks the next patch's loads to the end of the step, where their latency
    # is bare: (512, 7^2) takes 502, 480 with 4; NCHW float16 at (64, 56^2) 451 and 400.
    unroll: int = 8
    # Parts of C, on blockIdx.z: each computes its own output tiles, a second kernel sums them.
    split_c: int = 1

    @property
    def lane_e(self) -> int:
        """(eps, nu) pairs of a warp."""
        return blocks.WARP // (self.lane_k * self.lane_p)

    @property
    def threads(self) -> int:
        return _POINTS * self.lane_k * self.lane_p

    @property
    def warps(self) -> int:
        return self.threads // blocks.WARP

    @property
    def shared_bytes(self) -> int:
        """Of the kernel: U and V of the main loop, or M's rounds, which take their place."""
        copies = 2 if self.weights == "async" else 1
        u = copies * self.bc * _POINTS * self.bk
        v = self.bc * (_POINTS * self.bp + V_PAD)
        m = _POINTS * self.bk // self.rounds * (self.bp + 4)
        return 4 * max(u + v, m)

    @property
    def tiling(self) -> winograd.Tiling:
        k_tile, p_tile = (self.tk // 4, self.lane_k, 4), (self.tp // 4, self.lane_p, 4)
        return winograd.Tiling(2, k_tile, p_tile, self.bc * self.split_c, channel_outer=True)


# Largest reuse first: what the default chooses from.
LADDER = (
    Fused(),
    Fused(bk=32, tk=8, rounds=2),
    Fused(bk=32, bp=16, tk=8, lanes="eekkp", rounds=2),
    Fused(bk=16, bp=16, tk=4, tp=4, rounds=1),
)
_OTHERS = (
    Fused(bp=16, lanes="eekpk"),
    Fused(bk=32, lanes="eepkp"),
    Fused(tk=8, lanes="kpkkp", rounds=2),
    Fused(bk=16, bp=16, tk=8, lanes="eeekp", rounds=2),
)
# Blocks of the largest tile an SM that count as enough. With fewer, a smaller tile or parts of C.
_FILL = 0.7
# What time is made of on an H200 (1.98 GHz, driver 580, 2026-11-30; 250 points of tile and parts at
# batch 1 to 8), in steps of the first tile (1.8 us): 1 a wave of blocks, to fill and drain it; 1 a
# step and block of an SM, less for smaller tiles, but not less than the latency of a patch, which
# shows unless 4 neighbouring tiles share a row; for parts, the second kernel.
_LATENCY = 0.45
_SUM, _SUM_PART = 1.1, 0.01


def illegal(config: Fused, spec: ConvSpec, hw: Hardware) -> str | None:
    """None, or why `config` cannot run `spec` on `hw`."""
    if not isinstance(hw, Gpu):
        return f"a CUDA kernel, got a {hw.kind} target"
    if reason := _malformed(config):
        return reason
    if config.weights == "async" and not hw.has_async_copy:
        return f'weights="async" needs cp.async (sm_80 or newer), got {hw.arch}'
    if config.shared_bytes > hw.shared_per_block:
        return f"{config.shared_bytes} bytes of shared memory; {hw.arch} has {hw.shared_per_block}"
    needed = config.accumulators + _other_registers(config)
    available = min(hw.max_registers, hw.registers_per_sm // config.threads)
    if needed > available:
        return f"about {needed} registers a thread; {config.threads} threads may have {available}"
    if (kb := winograd.sizes(spec, config.tiling).kb) > 65535:
        return f"{kb} blocks of filters; a grid has at most 65535"
    return _bad_split(config, spec) if config.split_c > 1 else None


def _bad_split(config: Fused, spec: ConvSpec) -> str | None:
    """None, or why C of `spec` cannot be split like that."""
    if config.split_c > MAX_PARTS:
        return f"split_c={config.split_c}: a thread sums at most {MAX_PARTS} parts"
    steps = ceil_div(spec.c, config.bc)
    if (config.split_c - 1) * ceil_div(steps, config.split_c) >= steps:
        return f"split_c={config.split_c}: {steps} steps of {config.bc} channels leave a part empty"
    z = winograd.sizes(spec, config.tiling)
    if config.split_c * z.kb * z.bk * z.pb * z.bp * 4 >= 2**31:
        return f"split_c={config.split_c}: a workspace of 2^31 elements; indices are 32-bit"
    return None


def _malformed(config: Fused) -> str | None:
    """None, or why the numbers of `config` do not fit each other, whatever the GPU."""
    if reason := config.malformed_tile("bc", "rounds", "unroll", "split_c"):
        return reason
    want = [config.lane_e, config.lane_k, config.lane_p]
    if [2 ** config.lanes.count(ch) for ch in "ekp"] != want or len(config.lanes) != 5:
        return f"lanes={config.lanes!r}: 5 bits for e, k, p = {want[0]}, {want[1]}, {want[2]}"
    if config.bc * _POINTS * config.bk % (4 * config.threads):
        return f"bc={config.bc}: {config.threads} threads cannot share a step's weights evenly"
    if config.tk // 4 % config.rounds:
        return f"rounds={config.rounds} does not divide tk/4={config.tk // 4}"
    if config.bc % config.unroll:
        return f"unroll={config.unroll} does not divide bc={config.bc}"
    if config.weights not in ("async", "registers"):
        return f'weights={config.weights!r}: "async" or "registers"'
    return None


def _other_registers(config: Fused) -> int:
    """Beside the accumulators: fragments, data in flight, addresses (ptxas, sm_75 to sm_120)."""
    patches = ceil_div(config.bc * config.bp, config.threads) * _POINTS
    weights = ceil_div(config.bc * _POINTS * config.bk, config.threads)
    in_flight = patches + (weights if config.weights == "registers" else 0)
    return config.tk + config.tp + in_flight + 24


def portable(spec: ConvSpec) -> Fused:
    """For any GPU since sm_75, in 48 KB: what PTX for unknown GPUs is made of."""
    return Fused(bc=4, unroll=4, weights="registers")


def default(spec: ConvSpec, gpu: Gpu) -> Fused:
    """The largest tile if it fills `gpu`, else the cheapest of all tiles and parts.

    ResNet's four 3x3 layers with bias, residual and ReLU in a CUDA graph (H200, 2026-11-30): batch
    1 takes 7.2, 9.4, 9.6 and 8.5 us, without parts 7.1, 15, 27 and 46; batch 4 17, 18, 22 and 20,
    without 17, 27, 51 and 46. The best point of each is 3 % faster (geometric mean, batch 1 to 8).
    """
    largest = _variants(LADDER[0], spec, gpu)
    if largest:
        z = winograd.sizes(spec, largest[0].tiling)
        if z.kb * z.pb >= _FILL * gpu.sms:
            return largest[0]
    best = [found for tile in LADDER for found in _split(tile, spec, gpu)[:1]]
    return min(best, key=lambda c: _cost(c, spec, gpu), default=portable(spec))


def configs(spec: ConvSpec, hw: Hardware) -> list[Fused]:
    """The legal configs worth trying, the default first."""
    assert isinstance(hw, Gpu)
    out = [default(spec, hw)]
    for tile in LADDER + _OTHERS:
        few = _split(tile, spec, hw)[:2] if tile in LADDER else []
        out += [*few, *_variants(tile, spec, hw)]
    return list(dict.fromkeys(out))


def _split(tile: Fused, spec: ConvSpec, gpu: Gpu) -> list[Fused]:
    """`tile` with C whole and in parts of 1, 2, 3, ... steps, each once, cheapest first."""
    steps = ceil_div(spec.c, tile.bc)
    parts = sorted({ceil_div(steps, each) for each in range(1, steps + 1)})
    ways = [_variants(replace(tile, split_c=s), spec, gpu) for s in parts if s <= MAX_PARTS]
    return sorted((w[0] for w in ways if w), key=lambda c: _cost(c, spec, gpu))


def _cost(config: Fused, spec: ConvSpec, gpu: Gpu) -> float:
    """Estimated time in steps of the first tile of the ladder."""
    z = winograd.sizes(spec, config.tiling)
    blocks_of_an_sm = ceil_div(z.kb * z.pb * config.split_c, gpu.sms)
    resident = max(1, gpu.registers_per_sm // (config.threads * 2 * config.accumulators))
    step = blocks_of_an_sm * _work(config) / _work(LADDER[0])
    if z.cols % 4:
        step = max(step, _LATENCY)
    after = _SUM + _SUM_PART * config.split_c if config.split_c > 1 else 0.0
    steps = z.c_pad // config.split_c // config.bc
    return steps * step + ceil_div(blocks_of_an_sm, resident) + after


def _work(config: Fused) -> float:
    """Of a block's step: multiplications, and the loads of fragments that they take."""
    loads = 1 / config.tk + 1 / config.tp
    return config.bk * config.bp * config.bc * (1 + 2 * loads)


def _variants(tile: Fused, spec: ConvSpec, gpu: Gpu) -> list[Fused]:
    """The legal ways to move data for one size of block and thread, best first.

    On maps of odd width registers come first: (512, 7^2) at batch 128 takes 462 us with them, 502
    with cp.async, behind which ptxas hides the patch's loads badly there; in parts, whose loops are
    short, cp.async wins (12.8, not 13.9 us at batch 2; H200, 2026-11-30).
    """
    out = []
    odd = spec.ow % 2 and tile.split_c == 1
    ways = ("registers", "async") if odd else ("async", "registers")
    for weights in ways:
        for bc, unroll in ((8, 8), (8, 4), (4, 4)):
            config = replace(tile, weights=weights, bc=bc, unroll=unroll)
            if illegal(config, spec, gpu) is None:
                out.append(config)
    return out
