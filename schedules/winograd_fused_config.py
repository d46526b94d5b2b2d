"""The fused Winograd kernel's config: sizes, what they cost, whether they are legal, defaults."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tvm_winograd.gpu import Gpu, Hardware
from tvm_winograd.shapes import ConvSpec
from tvm_winograd.te import winograd
from tvm_winograd.te.common import ceil_div

from . import blocks

_POINTS = 16  # (eps, nu) pairs of F(2x2, 3x3)
_PORTABLE_SHARED = 48 * 1024  # bytes every CUDA GPU gives a block without opting in
V_PAD = 4  # words a channel of V, so that lanes along channels (NHWC) meet different banks


@dataclass(frozen=True)
class Fused:
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
    unroll: bool = True  # the channels of a step

    @property
    def lane_k(self) -> int:
        """Threads along the filters of a block."""
        return self.bk // self.tk

    @property
    def lane_p(self) -> int:
        """Threads along the tiles of a block."""
        return self.bp // self.tp

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
    def accumulators(self) -> int:
        """fp32 registers of a thread for M."""
        return self.tk * self.tp

    @property
    def shared_bytes(self) -> int:
        """Of the kernel: V, and in one place U during the main loop, M's rounds after it."""
        copies = 2 if self.weights == "async" else 1
        u = copies * self.bc * _POINTS * self.bk
        v = self.bc * (_POINTS * self.bp + V_PAD)
        m = _POINTS * self.bk // self.rounds * (self.bp + 4)
        return 4 * (v + max(u, m))

    @property
    def tiling(self) -> winograd.Tiling:
        k_tile, p_tile = (self.tk // 4, self.lane_k, 4), (self.tp // 4, self.lane_p, 4)
        return winograd.Tiling(2, k_tile, p_tile, self.bc, channel_outer=True)


# Sizes worth trying, largest reuse first; small ones fill a GPU when there are few output tiles.
_TILES = (
    Fused(),
    Fused(tk=8, lanes="kpkkp", rounds=2),
    Fused(bk=32, lanes="eepkp"),
    Fused(bp=16, lanes="eekpk"),
    Fused(bk=32, tk=8, rounds=2),
    Fused(bk=32, bp=16, tk=8, lanes="eekkp", rounds=2),
    Fused(bk=16, bp=16, tk=8, lanes="eeekp", rounds=2),
    Fused(bk=16, bp=16, tk=4, tp=4, rounds=1),
)


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
    return None


def _malformed(config: Fused) -> str | None:
    """None, or why the numbers of `config` do not fit each other, whatever the GPU."""
    for name in ("bk", "bp", "bc", "tk", "tp", "rounds"):
        if (value := getattr(config, name)) < 1:
            return f"{name}={value}: a positive integer is needed"
    if config.tk % 4 or config.tp % 4:
        return f"tk={config.tk}, tp={config.tp}: multiples of 4 (16-byte accesses) are needed"
    if config.bk % config.tk or config.bp % config.tp:
        return f"a {config.tk}x{config.tp} thread tile does not divide {config.bk}x{config.bp}"
    want = [config.lane_e, config.lane_k, config.lane_p]
    if [2 ** config.lanes.count(ch) for ch in "ekp"] != want or len(config.lanes) != 5:
        return f"lanes={config.lanes!r}: 5 bits for e, k, p = {want[0]}, {want[1]}, {want[2]}"
    if config.bc * _POINTS * config.bk % (4 * config.threads):
        return f"bc={config.bc}: {config.threads} threads cannot share a step's weights evenly"
    if config.tk // 4 % config.rounds:
        return f"rounds={config.rounds} does not divide tk/4={config.tk // 4}"
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
    return Fused(bc=4, weights="registers")


def default(spec: ConvSpec, gpu: Gpu) -> Fused:
    """The largest step that the shared memory holds."""
    for config in (Fused(), Fused(bc=4), portable(spec)):
        if illegal(config, spec, gpu) is None:
            return config
    return portable(spec)


def configs(spec: ConvSpec, hw: Hardware) -> list[Fused]:
    """The legal configs worth trying, the default first."""
    assert isinstance(hw, Gpu)
    out = [default(spec, hw)]
    for tile in _TILES:
        for bc in (8, 4):
            for weights in ("async", "registers"):
                config = replace(tile, bc=bc, weights=weights)
                if config not in out and illegal(config, spec, hw) is None:
                    out.append(config)
    return out
