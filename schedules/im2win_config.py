"""The config of the im2win CUDA kernels: sizes, what they cost, legality, defaults, ablation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tvm_winograd.gpu import Gpu, Hardware
from tvm_winograd.shapes import ConvSpec
from tvm_winograd.te import im2win
from tvm_winograd.te.common import ceil_div

from . import blocks

COPIES = ("async", "registers", "plain")
LONGEST_SUM = 3072  # products: one running sum of 4,608 errs 1.1e-6, of 2,304 about 0.8e-6


@dataclass(frozen=True)
class Im2win:
    """Sizes of a block and a thread, and how data moves."""

    # The convolution: a block of bk filters x bh rows x bw columns of output pixels, a thread of
    # tk x th x tw of them; tw neighbours of a row share the columns where their windows overlap.
    bk: int = 64
    bh: int = 8
    bw: int = 8
    tk: int = 8
    th: int = 1
    tw: int = 8
    # What the lane bits count, high to low: (k) filters, (h) rows, (w) runs of columns; the warps
    # of a block share the rest. Lanes along rows meet no bank twice: a row's pitch is chosen.
    lanes: str = "hkhkh"
    bc: int = 2  # channels a step
    bs: int = 0  # filter columns a step; 0: all
    shared: bool = True  # False: operands straight from global memory
    # How operands reach shared memory: "async" (cp.async, `buffers` - 1 steps ahead), "registers"
    # (one step ahead in registers, one buffer) or "plain" (when they are needed).
    copies: str = "async"
    buffers: int = 3
    unroll: int = 2048  # multiply-adds of a thread in straight line, at most
    parts: int = 1  # of C, in blocks of their own; a third kernel adds them
    threads: int = 256  # a block of the transform and of the sum of parts

    @property
    def grid_tile(self) -> tuple[int, int, int]:
        """Threads of a block along filters, rows and columns."""
        return self.bk // self.tk, self.bh // self.th, self.bw // self.tw

    @property
    def conv_threads(self) -> int:
        k, h, w = self.grid_tile
        return k * h * w

    @property
    def warps(self) -> int:
        """Of a block of the convolution."""
        return self.conv_threads // blocks.WARP

    @property
    def accumulators(self) -> int:
        """fp32 registers of a thread for its sums."""
        return self.tk * self.th * self.tw

    @property
    def k_vector(self) -> int:
        """Filters of one access to the weights."""
        return min(self.tk, 4)

    @property
    def tiling(self) -> im2win.Tiling:
        k, h, w = self.grid_tile
        k_tile = (self.tk // self.k_vector, k, self.k_vector)
        return im2win.Tiling(
            k_tile, (self.th, h), (w, self.tw), self.bc, self.bs, self.parts, staged=True
        )

    def window_columns(self, spec: ConvSpec) -> int:
        """Columns that a thread's run of pixels meets in a step."""
        bs = self.bs or spec.s
        return (self.tw - 1) * spec.stride + (bs - 1) * spec.dilation + 1

    def step_words(self, spec: ConvSpec) -> int:
        """Words of one buffer: weights and windows of a step."""
        z = im2win.sizes(spec, self.tiling)
        pitch = z.segment + (z.vector - z.segment) % (2 * z.vector)
        return self.bc * (z.bs * spec.r * self.bk + self.bh * pitch)

    def shared_bytes(self, spec: ConvSpec) -> int:
        return 4 * self.buffers * self.step_words(spec) if self.shared else 0

    def workspace_bytes(self, spec: ConvSpec) -> int:
        """Device memory beside the tensors: the windows, and sums of parts if there are any."""
        z = im2win.sizes(spec, self.tiling)
        sums = self.parts * z.kb * z.bk * z.hb * z.bh * z.wb * z.bw if self.parts > 1 else 0
        return 4 * (z.workspace + sums)


def illegal(config: Im2win, spec: ConvSpec, hw: Hardware) -> str | None:
    """None, or why `config` cannot run `spec` on `hw`."""
    if not isinstance(hw, Gpu):
        return f"a CUDA kernel, got a {hw.kind} target"
    if reason := _malformed(config) or _too_large(config, spec):
        return reason
    if config.shared and config.copies == "async" and not hw.has_async_copy:
        return f'copies="async" needs cp.async (sm_80 or newer), got {hw.arch}'
    if (size := config.shared_bytes(spec)) > hw.shared_per_block:
        return f"{size} bytes of shared memory; {hw.arch} has {hw.shared_per_block}"
    fragments = config.th * config.window_columns(spec) + config.tk
    needed = config.accumulators + fragments + _staged_registers(config, spec) + 32
    available = min(hw.max_registers, hw.registers_per_sm // config.conv_threads)
    if needed > available:
        return f"about {needed} registers; {config.conv_threads} threads may have {available} each"
    return None


def _malformed(config: Im2win) -> str | None:
    """None, or why the numbers of `config` do not fit each other, whatever the GPU."""
    positive = ("bk", "bh", "bw", "tk", "th", "tw", "bc", "buffers", "unroll", "parts", "threads")
    for name in positive:
        if (value := getattr(config, name)) < 1:
            return f"{name}={value}: a positive integer is needed"
    for axis in "khw":
        block, thread = getattr(config, f"b{axis}"), getattr(config, f"t{axis}")
        if block % thread:
            return f"t{axis}={thread} does not divide b{axis}={block}"
    if config.tk % config.k_vector:
        return f"tk={config.tk}: a multiple of 4, or less than 4, is needed"
    bits = [2 ** config.lanes.count(axis) for axis in "khw"]
    if len(config.lanes) != 5 or bits[0] * bits[1] * bits[2] != blocks.WARP:
        return f"lanes={config.lanes!r}: 5 bits, each k, h or w, are needed"
    if any(there % bit for there, bit in zip(config.grid_tile, bits, strict=True)):
        return f"lanes={config.lanes!r} do not divide {config.grid_tile} threads (k, h, w)"
    if config.conv_threads > 1024 or config.threads > 1024 or config.threads % blocks.WARP:
        return f"{config.conv_threads} and {config.threads} threads: at most 1024, whole warps"
    return _malformed_copies(config)


def _malformed_copies(config: Im2win) -> str | None:
    if config.copies not in COPIES:
        return f"copies={config.copies!r}: {', '.join(COPIES)}"
    if config.shared and (config.copies == "async") != (config.buffers > 1):
        return f'buffers={config.buffers} with copies={config.copies!r}: 2 or more if "async", or 1'
    if config.bs < 0:
        return f"bs={config.bs}: filter columns of a step, or 0 for all, are needed"
    return None


def _too_large(config: Im2win, spec: ConvSpec) -> str | None:
    if config.bs > spec.s:
        return f"bs={config.bs}: the filter has {spec.s} columns"
    z = im2win.sizes(spec, config.tiling)
    if config.parts > 65535:
        return f"parts={config.parts}; a grid has at most 65535"
    largest = config.workspace_bytes(spec) // 4
    if max(largest, z.kb * z.bk * z.c_pad * z.sb * z.bs * spec.r) >= 2**31:
        return f"a workspace of {largest} elements; indices are 32-bit"
    return None


def _staged_registers(config: Im2win, spec: ConvSpec) -> int:
    """A step's share of weights and windows on its way through a thread's registers."""
    if not config.shared or config.copies != "registers":
        return 0
    return ceil_div(config.step_words(spec), config.conv_threads)


def portable(spec: ConvSpec) -> Im2win:
    """For any GPU since sm_75, in 48 KB: what PTX for unknown GPUs is made of."""
    return replace(_tile(spec, steps=1), copies="registers", buffers=1)


def default(spec: ConvSpec, gpu: Gpu) -> Im2win:
    """The tile of most reuse, C in parts where its blocks would not fill `gpu`."""
    config = _tile(spec, steps=2)
    if not gpu.has_async_copy:
        config = replace(config, copies="registers", buffers=1)
    return replace(config, parts=_parts(config, spec, gpu))


def configs(spec: ConvSpec, hw: Hardware) -> list[Im2win]:
    """The legal configs worth trying, the default first."""
    assert isinstance(hw, Gpu)
    first = default(spec, hw)
    out = [first]
    out += [replace(first, **change) for change in _shapes(first)]
    out += [replace(c, bc=bc) for c in tuple(out) for bc in (1, 2, 4, 8) if bc <= spec.c]
    out += [replace(first, bs=bs) for bs in range(2, spec.s)]
    out += [replace(first, unroll=n) for n in (512, 1024, 8192)]
    out += [replace(first, parts=n) for n in (1, 2, 4, 8, 16)]
    if first.copies == "async":
        out += [replace(c, buffers=n) for c in tuple(out[:6]) for n in (2, 4)]
    legal = [c for c in dict.fromkeys(out) if illegal(c, spec, hw) is None]
    return [c for c in legal if im2win.sizes(spec, c.tiling).steps % c.parts == 0]


def ablation(full: Im2win) -> list[tuple[str, Im2win]]:
    """(what is left out, config): the paper's optimisations, each switched off in turn."""
    plain = replace(full, copies="plain", buffers=1)
    one: dict[str, Any] = {"bk": 16, "bh": 2, "bw": 8, "tk": 1, "th": 1, "tw": 1, "lanes": "wkwkw"}
    runs: dict[str, Any] = {"bh": 8, "th": 8, "bw": 8, "tw": 1, "lanes": "wkwkw"}
    return [
        ("nothing", full),
        ("shared memory", replace(full, shared=False, copies="plain", buffers=1)),
        # no other thread uses a window that is in shared memory
        (
            "tiling",
            replace(full, bk=full.tk, bh=32 * full.th, lanes="hhhhh", buffers=min(2, full.buffers)),
        ),
        ("micro-kernel", replace(full, **one)),
        # a thread's pixels lie in different rows: no window of theirs overlaps
        ("overlap of windows", replace(full, **runs)),
        ("double buffer", replace(plain, copies="registers")),
        ("prefetch", plain),
    ]


def _shapes(first: Im2win) -> list[dict[str, Any]]:
    """Other blocks for the default's threads: lanes along columns, more or fewer of each."""
    wide = {"bh": first.th, "bw": 8 * first.tw, "lanes": "wkwkw"}
    return [
        wide,
        {"bh": 2 * first.bh},
        {"bk": first.bk // 2, "bh": 2 * first.bh},
        {"bh": first.bh // 2, "bk": 2 * first.bk, "lanes": "hkkkh"},
        {"bh": 4 * first.th, "bw": 2 * first.tw, "lanes": "hkwkh"},
        {"bk": 8 * first.tk // 2, "tk": first.tk // 2},
    ]


def _tile(spec: ConvSpec, steps: int) -> Im2win:
    """The run of columns, filters and channels of a step that suit the layer."""
    th, tw = min(_RUNS, key=lambda run: _cost(spec, *run))
    bk = min((64, 96, 32), key=lambda bk: ceil_div(spec.k, bk) * bk)
    limit = 18  # products of a step
    bs = spec.s if spec.s * spec.r <= 64 else max(1, 48 // spec.r)
    bc = max(d for d in range(1, max(1, limit // (bs * spec.r)) + 1) if spec.c % d == 0)
    return Im2win(bk=bk, bh=8 * th, bw=tw, th=th, tw=tw, bc=bc, bs=bs % spec.s)


# (rows, columns) of a thread
_RUNS = (*((1, tw) for tw in range(6, 14)), (2, 4), (2, 5), (2, 6), (4, 2), (8, 1))


def _cost(spec: ConvSpec, th: int, tw: int) -> float:
    """Issued instructions a useful multiply-add, for 8 filters a thread."""
    padding = ceil_div(spec.ow, tw) * tw / spec.ow
    columns = (tw - 1) * spec.stride + (spec.s - 1) * spec.dilation + 1
    loads = th * min(columns, tw * spec.s) + 2 * spec.s
    return padding * (1 + loads / (8 * th * tw * spec.s))


def _parts(config: Im2win, spec: ConvSpec, gpu: Gpu) -> int:
    """Parts of C: enough blocks for the GPU, no sum longer than LONGEST_SUM."""
    z = im2win.sizes(spec, config.tiling)
    wanted = 4 * gpu.sms // max(1, z.kb * z.hb * z.wb)
    wanted = max(wanted, ceil_div(spec.c * spec.r * spec.s, LONGEST_SUM))
    channels = spec.c // config.bc
    return max(d for d in range(1, channels + 1) if channels % d == 0 and d <= max(1, wanted))
