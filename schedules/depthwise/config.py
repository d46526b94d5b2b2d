"""The config of the depthwise CUDA kernel: sizes, what they cost, which are worth trying."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tvm_winograd.gpu import PORTABLE, Gpu, Hardware
from tvm_winograd.shapes import ConvSpec
from tvm_winograd.te import direct
from tvm_winograd.te.common import product

from ..base import blocks
from ..base.product_time import SCHEDULERS, stream_seconds

# Input elements under a thread's pixels that registers hold.
MOST_PATCH = 72
# Multiply-adds of a thread in straight line, for one channel of its group.
MOST_STRAIGHT = 1024
# Shared memory of a block, bytes: what needs no opt-in.
MOST_SHARED = 48 * 1024
_TILES = ((2, 1), (4, 1), (7, 1), (8, 1), (1, 2), (1, 4), (2, 2), (4, 2), (4, 4))
# Threads of an SM that hide the latency of loads.
_THREADS_PER_SM = 512
_CHANNELS = (8, 16, 32)
# Instructions (SASS for sm_90) of an output's store with its epilogue, and of a thread's indices.
_STORE, _PROLOGUE = 4, 60


@dataclass(frozen=True)
class Depthwise:
    """Sizes of a thread and a block, and where the input waits."""

    th: int = 8  # output rows a thread
    tw: int = 1  # output columns a thread; 1 keeps the lanes of NCHW on neighbours in memory
    tk: int = 1  # filters a thread, all of one group
    threads: int = 256  # a block; with `channels` it has what they need
    # The input under a thread's pixels is loaded once, to registers; else once for each tap, as
    # large filters need.
    patch: bool = True
    # NCHW, one filter a channel: this many whole maps a block, through shared memory; 0: none.
    channels: int = 0

    @property
    def tiling(self) -> direct.Tiling:
        return direct.Tiling(self.tk, self.th, self.tw, staged=True, wide_weights=True)

    @property
    def outputs(self) -> int:
        """Sums a thread has in registers."""
        return self.th * self.tw * self.tk

    def patch_size(self, spec: ConvSpec) -> int:
        """Input elements of a channel that a thread's pixels touch."""
        rows = _touched(self.th, spec.r, spec.strides[0], spec.dilations[0])
        return rows * _touched(self.tw, spec.s, spec.strides[1], spec.dilations[1])

    def grid(self, spec: ConvSpec) -> tuple[int, int, int, int]:
        """Threads along n, filters, rows and columns."""
        z = direct.sizes(spec, self.tiling)
        return spec.n, z.kb, z.hb, z.wb

    def shared_for(self, spec: ConvSpec) -> int:
        """Bytes of shared memory a block needs, at most."""
        return 4 * self.channels * spec.h * spec.w


def _touched(pixels: int, taps: int, stride: int, dilation: int) -> int:
    """Input rows (or columns) under some neighbouring output pixels."""
    return len({p * stride + t * dilation for p in range(pixels) for t in range(taps)})


def illegal(config: Depthwise, spec: ConvSpec, hw: Hardware) -> str | None:
    """None, or why `config` cannot run `spec` on `hw`."""
    if not isinstance(hw, Gpu):
        return f"a CUDA kernel, got a {hw.kind} target"
    for name in ("th", "tw", "tk"):
        if (value := getattr(config, name)) < 1:
            return f"{name}={value}: a positive integer is needed"
    if config.outputs == 1:
        return "th = tw = tk = 1: a thread needs two outputs or more"
    if config.threads % blocks.WARP or not 0 < config.threads <= 1024:
        return f"threads={config.threads}: whole warps, at most 1024, are needed"
    if reason := direct.illegal(spec, config.tiling):
        return reason
    if config.patch and (size := config.patch_size(spec)) > MOST_PATCH:
        return f"{size} elements under a thread's pixels; registers hold {MOST_PATCH}"
    if (straight := config.outputs * (spec.r * spec.s if config.patch else 1)) > MOST_STRAIGHT:
        return f"{straight} multiply-adds in straight line; at most {MOST_STRAIGHT}"
    return _bad_channels(config, spec) if config.channels else None


def _bad_channels(config: Depthwise, spec: ConvSpec) -> str | None:
    if config.channels < 0 or not config.patch:
        return f"channels={config.channels}: a positive integer, and patch=True, are needed"
    if spec.layout != "NCHW" or not spec.c == spec.k == spec.groups:
        return "channels: only NCHW with one filter a channel goes through shared memory"
    if spec.c % config.channels:
        return f"channels={config.channels} must divide c={spec.c}"
    if (bytes_ := config.shared_for(spec)) > MOST_SHARED:
        return f"{bytes_} bytes of shared memory; at most {MOST_SHARED}"
    if (threads := config.channels * product(config.grid(spec)[2:])) > 1024:
        return f"{threads} threads a block; at most 1024"
    return None


def default(spec: ConvSpec, gpu: Gpu) -> Depthwise:
    """The cheapest of the tiles whose patch registers hold, without shared memory."""
    return min(_ladder(spec, gpu), key=lambda c: cost(c, spec, gpu))


def portable(spec: ConvSpec) -> Depthwise:
    """For any GPU since sm_75."""
    return default(spec, PORTABLE)


def configs(spec: ConvSpec, hw: Hardware) -> list[Depthwise]:
    """The legal configs worth trying, the default first."""
    assert isinstance(hw, Gpu)
    first = default(spec, hw)
    tiles = list(_ladder(spec, hw))
    out = [first, *(replace(first, threads=n) for n in (64, 128, 512)), *tiles]
    out += [replace(c, channels=n) for c in tiles if c.tw == 1 for n in _CHANNELS]
    return [c for c in dict.fromkeys(out) if illegal(c, spec, hw) is None]


def cost(config: Depthwise, spec: ConvSpec, gpu: Gpu) -> float:
    """Clocks of an SM's one port for loads and stores: a warp's access takes one a line or more."""
    apart = config.tw * spec.strides[1] if spec.layout == "NCHW" else 1  # words between lanes
    taps = spec.r * spec.s
    loads = config.patch_size(spec) if config.patch else taps * config.outputs
    weights = taps if config.tk in (2, 4) else taps * config.tk  # vectors of 2 or 4
    each = spec.c // spec.groups * (loads * apart + weights) + config.outputs
    threads = max(product(config.grid(spec)), gpu.sms * _THREADS_PER_SM)
    return each * threads / blocks.WARP / gpu.sms


def seconds(config: Depthwise, spec: ConvSpec, gpu: Gpu) -> float:
    """Estimated time: of memory, of loads and stores, or of instructions, whichever is most."""
    taps = spec.r * spec.s * spec.c // spec.groups
    each = config.outputs * (2 * taps + _STORE) + _PROLOGUE
    issue = each * product(config.grid(spec)) / blocks.WARP / SCHEDULERS / gpu.sms
    return max(stream_seconds(spec.bytes, gpu), max(issue, cost(config, spec, gpu)) / gpu.hertz)


def _ladder(spec: ConvSpec, gpu: Gpu) -> Iterator[Depthwise]:
    """Legal tiles, one at least."""
    filters = spec.k // spec.groups
    tk = next(n for n in (4, 3, 2, 1) if filters % n == 0)
    legal = [c for th, tw in _TILES if not illegal(c := Depthwise(th, tw, tk), spec, gpu)]
    yield from legal or [Depthwise(2, 1, tk, patch=False)]
