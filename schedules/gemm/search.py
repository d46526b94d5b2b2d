"""Which configs of the matrix product kernels are worth trying, and the default among them."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import lru_cache

from tvm_winograd.gpu import Gpu, Hardware
from tvm_winograd.shapes import ConvSpec
from tvm_winograd.te import gemm
from tvm_winograd.te.common import ceil_div, input_reach

from ..base import blocks, product_time
from .config import LONGEST_SUM, MAX_PARTS, Im2col, Implicit, Product, illegal

# Largest reuse first: what the default chooses from.
LADDER = (
    Implicit(bk=128, bp=128),
    Implicit(bk=128),
    Implicit(bp=128),
    Implicit(),
    Implicit(bk=32, tk=4, lanes="ppkkp"),
    Implicit(bp=32, tp=4),
    Implicit(bp=32, tp=4, bc=16),
    Implicit(bk=32, bp=32, tk=4, tp=4),
    Implicit(bk=32, bp=32, tk=4, tp=4, bc=16),
)
_OTHERS = (
    Implicit(bc=16, buffers=3),
    Implicit(bk=32, bp=128, tk=4, lanes="ppkkp"),
    Implicit(bk=32, bp=32, tk=4, lanes="pkkkp"),
)
_MOST = 24  # candidates
_LONGEST_STEP = 36  # products, all unrolled
# Tiles that the default also tries in steps of whole channels, of at most bc products: of each what
# was fastest at 3x3, stride 2, batch 128 (6 convolutions, H200, 2026-11-30). At (64 -> 128, 56^2)
# 128x64 took 311 us with bc=18, 316 with 9, 344 with (r, s, c); 64x64 320 with bc=9, 330 with 18.
_WHOLE = (Implicit(bk=128, bc=18, buffers=2), Implicit(bc=9))
# Instructions of copies with their addresses (SASS for sm_90): of 16 bytes, of a word, of a word
# with a guard, through registers, and of a step's guard itself, which whole channels have before
# the loop (the 32x32 tile then has 23.4 instructions a product, not 29.1).
# NHWC gathers words always, and a word takes as many there: a step of the 128x64 tile has 604 (NCHW
# 601), with guards 652 (675).
_COPY, _WORD, _GUARDED_WORD, _REGISTERS, _GUARD = 4, 5, 8, 6, 50
# What `seconds` knows beside `cost`: 333 configs of 201 convolutions and kernels are then within
# 12 % (standard deviation), 18 % without (H200, 2026-11-30). `cost` alone chooses the default: by
# `seconds` 53 of the 194 convolutions of benchmarks/selector.py would get another, none measured.
_MEASURED = 1.10  # over `cost`
# Issue slots that a guarded word takes beyond its counted instructions, and a word with strides or
# in steps of more than 9 products, whose addresses do not fit the copies (SASS: 27 instructions);
# of whole channels they do (5): 100 configs of 12 convolutions take 4 +- 4 % less than estimated.
_GUARDED, _FAR = 10, 20
# Clocks of a guarded word that is no neighbour of the next: nvcc makes a branch of each, one after
# the other, which costs latency instead; not of guards from before the loop.
_BRANCH = 70
# The last round's stores, when nothing else runs, as a share of what memory takes: 8 lanes' words
# of a map that is no multiple of 16 bytes leave two sectors partly filled.
_STORE, _WORD_STORE = 0.75, 2.7
_IM2COL = 1.8  # the kernel that writes B, over one that only copies
_WORTH_MEMORY = 0.9  # of implicit GEMM's time, for which im2col may take r * s inputs of memory


def portable(spec: ConvSpec) -> Implicit:
    """For any GPU since sm_75, in 48 KB: what PTX for unknown GPUs is made of."""
    whole = _through_registers(_shaped(Implicit(), spec))
    return replace(whole, parts=ceil_div(gemm.sizes(spec, whole.tiling).q, LONGEST_SUM))


@lru_cache(maxsize=256)
def default(spec: ConvSpec, gpu: Gpu) -> Implicit:
    """The cheapest of all tiles, kinds of step and parts."""
    whole = [c for tile in _WHOLE if (c := _in_whole_channels(tile, spec, gpu))]
    found = [c for tile in whole for c in _split(tile, spec, gpu)[:1]]
    return min([_without_whole(spec, gpu), *found], key=lambda c: cost(c, spec, gpu))


@lru_cache(maxsize=256)
def _without_whole(spec: ConvSpec, gpu: Gpu) -> Implicit:
    """The cheapest in LADDER's steps."""
    found = [c for tile in LADDER for c in _split(_fit(tile, spec, gpu), spec, gpu)[:1]]
    return min(found, key=lambda c: cost(c, spec, gpu), default=portable(spec))


def configs(spec: ConvSpec, hw: Hardware) -> list[Implicit]:
    """The legal configs worth trying, the default first."""
    return list(_configs(spec, hw))


@lru_cache(maxsize=256)  # a choice asks for those of both kernels, several times
def _configs(spec: ConvSpec, hw: Hardware) -> tuple[Implicit, ...]:
    assert isinstance(hw, Gpu)
    first = default(spec, hw)
    out = [first]
    for whole in _whole_channels(first, spec):
        out += [whole, *_split(whole, spec, hw)[:1]]
    out += [replace(first, parts=n) for n in (first.parts // 2, 2 * first.parts) if n]
    for tile in _WHOLE:
        for two in _whole_channels(_fit(replace(tile, bc=8), spec, hw), spec)[1:2]:
            out += [replace(two, parts=n) for n in (1, first.parts, 2)]
            out += _split(two, spec, hw)[:2]
    for tile in LADDER + _OTHERS:
        fitted = _fit(tile, spec, hw)
        out += [fitted] * (first.parts == 1) + _split(fitted, spec, hw)[:1]
    if first.inputs == "async16":
        out.append(replace(first, inputs="async4"))
    if first.buffers > 2:
        out += [replace(first, buffers=6), replace(first, inputs="registers", buffers=2)]
    return tuple(c for c in dict.fromkeys(out) if illegal(c, spec, hw) is None)[:_MOST]


def _whole_channels(config: Implicit, spec: ConvSpec) -> list[Implicit]:
    """`config` in steps of 1, 2, 4 channels with all their taps, addressed and guarded once.

    A step of the 128x64 tile (3x3, stride 2; SASS for sm_90) has 1.26 instructions an FFMA with
    (r, s, c); 1.16, 1.15, 1.11 like this, in 11, 21, 41 KB of code.
    """
    taps = spec.r * spec.s
    if taps == 1 or config.inputs != "async4" or spec.c // spec.groups % 8:
        return []
    steps = [(n * taps, buffers) for n, buffers in ((1, 4), (2, 2), (4, 2))]
    ways = [replace(config, bc=bc, buffers=b, taps_inner=True) for bc, b in steps]
    return [c for c in ways if c.bc <= _LONGEST_STEP]


def _in_whole_channels(tile: Implicit, spec: ConvSpec, gpu: Gpu) -> Implicit | None:
    """`tile` in steps of whole channels, if these save its gather's guards.

    Not in NHWC, whose lanes lie along the channels of a tap.
    """
    taps, config = spec.r * spec.s, _fit(replace(tile, bc=8), spec, gpu)
    bc = tile.bc // taps * taps
    if taps == 1 or bc == 0 or config.taps_inner or config.inputs != "async4":
        return None
    if max(spec.padding) == 0 or spec.layout == "NHWC":
        return None
    return replace(config, bc=bc, taps_inner=True)


def im2col_configs(spec: ConvSpec, hw: Hardware) -> list[Im2col]:
    """The same, with B from a workspace: the implicit default's tile first.

    Not in steps of whole channels by default: there is no guard to save, and with bc=18 (128, 28^2)
    at batch 32 took 204, not 187 us, (512, 7^2) 101, not 107 (H200, 2026-11-30). Through registers
    where the workspace has more elements than cp.async reaches.
    """
    assert isinstance(hw, Gpu)
    for implicit in ([_without_whole(spec, hw), *configs(spec, hw)], [portable(spec)]):
        found = dict.fromkeys(_with_workspace(config) for config in implicit)
        if legal := [c for c in found if illegal(c, spec, hw) is None]:
            return legal[:_MOST]
    return []


def _with_workspace(config: Implicit) -> Im2col:
    values = {f.name: getattr(config, f.name) for f in fields(Product)} | {
        "inputs": "workspace",
        "buffers": 1 if config.weights == "registers" else max(config.buffers, 3),
    }
    return Im2col(**values)


def not_worth_im2col(spec: ConvSpec, hw: Hardware) -> str | None:
    """None, or why a workspace is not worth its memory."""
    assert isinstance(hw, Gpu)
    im2col = _with_workspace(_without_whole(spec, hw))
    gathered, copied = seconds(default(spec, hw), spec, hw), seconds(im2col, spec, hw)
    if copied <= _WORTH_MEMORY * gathered:
        return None
    return f"estimated {copied * 1e6:.1f} us: too little saved for r * s times the input in memory"


def cost(config: Product, spec: ConvSpec, gpu: Gpu) -> float:
    """Estimated time in clocks of an SM."""
    return _clocks(_loop(config, spec), config, spec, gpu)


def _clocks(loop: product_time.Product, config: Product, spec: ConvSpec, gpu: Gpu) -> float:
    time = product_time.clocks(loop, gpu)
    if config.parts == 1:
        return time
    z = gemm.sizes(spec, config.tiling)
    moved = 8 * config.parts * spec.groups * z.kb * z.bk * z.pb * z.bp
    return time + product_time.LAUNCH_CLOCKS + moved / gpu.sms / product_time.L2_BYTES


def seconds(config: Product, spec: ConvSpec, gpu: Gpu) -> float:
    """Estimated time; not less than device memory needs, the im2col kernel included."""
    loop = _loop(config, spec)
    clocks = _MEASURED * _clocks(loop, config, spec, gpu) + _gathering(config, spec, gpu, loop)
    time = clocks / gpu.hertz + _last_stores(config, spec, gpu, loop)
    time = max(time, product_time.stream_seconds(spec.bytes, gpu))
    if config.inputs == "workspace":
        moved = spec.bytes // 2 + workspace(config, spec)
        time += product_time.stream_seconds(moved, gpu, slower=_IM2COL)
    return time


def _loop(config: Product, spec: ConvSpec) -> product_time.Product:
    """The product kernel's main loop."""
    z = gemm.sizes(spec, config.tiling)
    return product_time.Product(
        blocks=spec.groups * config.parts * z.kb * z.pb,
        steps=z.q // config.parts // config.bc,
        threads=config.threads,
        tk=config.tk,
        tp=config.tp,
        bc=config.bc,
        copies=_copies(config, spec),
        step_bytes=4 * config.bc * (config.bk + config.bp),
        shared_bytes=config.shared_bytes,
        buffers=config.buffers,
    )


def _gathering(config: Product, spec: ConvSpec, gpu: Gpu, loop: product_time.Product) -> float:
    """Clocks of gathering B from the input, beside those that `cost` counts."""
    if config.inputs != "async4":
        return 0.0
    whole, padded = _whole(config, spec), max(spec.padding) > 0
    branch = config.store == "words" and not whole
    word = 0
    if padded and not branch:
        word = _FAR if config.bc > 9 and not whole else _GUARDED
    if max(spec.strides) > 1 and not whole:
        word = _FAR
    words = loop.steps * config.bc * config.bp  # of a block
    issued = ceil_div(loop.blocks, gpu.sms) * words * word / gpu.warp / product_time.SCHEDULERS
    _, rounds = product_time.occupancy(loop, gpu)
    return issued + rounds * words / config.threads * _BRANCH * (padded and branch)


def _last_stores(config: Product, spec: ConvSpec, gpu: Gpu, loop: product_time.Product) -> float:
    """Seconds in which the last round of blocks stores and nothing else runs."""
    if config.parts > 1:
        return 0.0
    resident, _ = product_time.occupancy(loop, gpu)
    share = min(1.0, resident * gpu.sms / loop.blocks)
    outputs = 4 * share * spec.n * spec.k * spec.oh * spec.ow
    slower = _WORD_STORE if config.store == "words" else _STORE
    return slower * product_time.memory_seconds(outputs, gpu)


def workspace(config: Product, spec: ConvSpec) -> int:
    """Bytes of device memory beside the arguments: B of im2col, the parts of M."""
    z = gemm.sizes(spec, config.tiling)
    words = z.q if config.inputs == "workspace" else 0
    words += config.parts * z.kb * z.bk if config.parts > 1 else 0
    return 4 * spec.groups * z.pb * z.bp * words


def _copies(config: Product, spec: ConvSpec) -> float:
    """Instructions of a block in a step that move data."""
    guarded = max(spec.padding) > 0 and config.inputs != "workspace"
    word = _GUARDED_WORD if guarded else _WORD
    of_input = {"async4": word, "registers": _REGISTERS}.get(config.inputs, _COPY / 4)
    copies = config.bc * (config.bk * _COPY / 4 + config.bp * of_input)
    each_step = guarded and not _whole(config, spec)
    return copies + _GUARD * each_step * config.threads


def _whole(config: Product, spec: ConvSpec) -> bool:
    """Whether steps are of whole channels, so that guards are computed before the loop."""
    return config.taps_inner and config.bc % (spec.r * spec.s) == 0


def _split(config: Implicit, spec: ConvSpec, gpu: Gpu) -> list[Implicit]:
    """`config` with the reduction whole and in parts of 1, 2, 3, ... steps, cheapest first."""
    steps = gemm.sizes(spec, config.tiling).q // config.bc
    parts = sorted({ceil_div(steps, each) for each in range(1, steps + 1)})
    ways = [replace(config, parts=n) for n in parts if n <= MAX_PARTS]
    legal = [c for c in ways if illegal(c, spec, gpu) is None]
    return sorted(legal, key=lambda c: cost(c, spec, gpu))


def _fit(tile: Implicit, spec: ConvSpec, gpu: Gpu) -> Implicit:
    """`tile` with the ways of moving data that `spec` and `gpu` allow."""
    config = _shaped(tile, spec)
    if not gpu.has_async_copy:
        return _through_registers(config)
    if spec.dtype != "float32" or input_reach(spec) > blocks.MOST_COPIED:
        return replace(config, inputs="registers", buffers=2, bc=8)
    if gemm.input_consecutive(spec):
        return replace(config, inputs="async16")
    return config


def _shaped(tile: Implicit, spec: ConvSpec) -> Implicit:
    """`tile` with the order of the reduction and the stores that `spec` needs."""
    store = "pixels" if gemm.consecutive(spec) else "words"
    if spec.layout == "NHWC" and spec.k // spec.groups % 4 == 0:
        store = "filters"
    taps = spec.r * spec.s
    if taps == 1 or spec.c // spec.groups % tile.bc == 0:
        return replace(tile, store=store)
    inner = next((n for n in (taps, spec.s) if 4 <= n <= blocks.WARP // 2), tile.bc)
    return replace(tile, store=store, bc=inner, taps_inner=True)


def _through_registers(config: Implicit) -> Implicit:
    return replace(config, weights="registers", inputs="registers", buffers=1, bc=8)
