"""Which configs of the matrix product kernels are worth trying, and the default among them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from functools import lru_cache

from tvm_winograd.gpu import Gpu
from tvm_winograd.shapes import ConvSpec
from tvm_winograd.te import gemm
from tvm_winograd.te.common import ceil_div, input_reach

from ..base import blocks
from ..base.legal import LONGEST_SUM
from .config import Im2col, Implicit, Product, Store
from .cost import cost, seconds
from .legal import MAX_PARTS, illegal

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
# Tiles that the default also tries in steps of whole channels, of at most bc products: the fastest
# of each at 3x3, stride 2, batch 128; 10 % faster than steps of (r, s, c).
_WHOLE = (Implicit(bk=128, bc=18, buffers=2), Implicit(bc=9))
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


def configs(spec: ConvSpec, gpu: Gpu) -> list[Implicit]:
    """The legal configs worth trying, the default first."""
    return list(_configs(spec, gpu))


@lru_cache(maxsize=256)  # a choice asks for those of both kernels, several times
def _configs(spec: ConvSpec, gpu: Gpu) -> tuple[Implicit, ...]:
    first = default(spec, gpu)
    out = [first]
    for whole in _whole_channels(first, spec):
        out += [whole, *_split(whole, spec, gpu)[:1]]
    out += [replace(first, parts=n) for n in (first.parts // 2, 2 * first.parts) if n]
    for tile in _WHOLE:
        for two in _whole_channels(_fit(replace(tile, bc=8), spec, gpu), spec)[1:2]:
            out += [replace(two, parts=n) for n in (1, first.parts, 2)]
            out += _split(two, spec, gpu)[:2]
    for tile in LADDER + _OTHERS:
        fitted = _fit(tile, spec, gpu)
        out += [fitted] * (first.parts == 1) + _split(fitted, spec, gpu)[:1]
    if first.inputs == "async16":
        out.append(replace(first, inputs="async4"))
    if first.buffers > 2:
        out += [replace(first, buffers=6), replace(first, inputs="registers", buffers=2)]
    return tuple(c for c in dict.fromkeys(out) if illegal(c, spec, gpu) is None)[:_MOST]


def _whole_channels(config: Implicit, spec: ConvSpec) -> list[Implicit]:
    """`config` in steps of 1, 2, 4 channels with all their taps, addressed and guarded once.

    A step of the 128x64 tile (3x3, stride 2; SASS for sm_90) has 1.16 instructions an FFMA, 1.26
    with (r, s, c).
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


def im2col_configs(spec: ConvSpec, gpu: Gpu) -> list[Im2col]:
    """The same, with B from a workspace: the implicit default's tile first.

    Not in steps of whole channels by default: there is no guard to save, and (128, 28^2) took 9 %
    longer. Through registers where the workspace has more elements than cp.async reaches.
    """
    for implicit in ([_without_whole(spec, gpu), *configs(spec, gpu)], [portable(spec)]):
        found = dict.fromkeys(_with_workspace(config) for config in implicit)
        if legal := [c for c in found if illegal(c, spec, gpu) is None]:
            return legal[:_MOST]
    return []


def im2col_trial(spec: ConvSpec, gpu: Gpu) -> Iterator[Im2col]:
    """The least demanding config, and where it is illegal those that are not."""
    yield _with_workspace(portable(spec))
    yield from im2col_configs(spec, gpu)


def _with_workspace(config: Implicit) -> Im2col:
    values = {f.name: getattr(config, f.name) for f in fields(Product)} | {
        "inputs": "workspace",
        "buffers": 1 if config.weights == "registers" else max(config.buffers, 3),
    }
    return Im2col(**values)


def not_worth_im2col(spec: ConvSpec, gpu: Gpu) -> str | None:
    """None, or why a workspace is not worth its memory."""
    im2col = _with_workspace(_without_whole(spec, gpu))
    gathered, copied = seconds(default(spec, gpu), spec, gpu), seconds(im2col, spec, gpu)
    if copied <= _WORTH_MEMORY * gathered:
        return None
    return f"estimated {copied * 1e6:.1f} us: too little saved for r * s times the input in memory"


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
    store: Store = "pixels" if gemm.consecutive(spec) else "words"
    if spec.layout == "NHWC" and spec.k // spec.groups % 4 == 0:
        store = "filters"
    taps = spec.r * spec.s
    if taps == 1 or spec.c // spec.groups % tile.bc == 0:
        return replace(tile, store=store)
    inner = next((n for n in (taps, spec.s) if 4 <= n <= blocks.WARP // 2), tile.bc)
    return replace(tile, store=store, bc=inner, taps_inner=True)


def _through_registers(config: Implicit) -> Implicit:
    return replace(config, weights="registers", inputs="registers", buffers=1, bc=8)
