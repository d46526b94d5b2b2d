"""Which configs of the im2win CUDA kernels are worth trying, the default, and the ablation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tvm_winograd.gpu import Gpu, Hardware
from tvm_winograd.shapes import ConvSpec
from tvm_winograd.te import im2win
from tvm_winograd.te.common import ceil_div

from .im2win_config import Im2win, illegal

# Products of one running sum: 1,152 err 6.1e-7 and 576 4.3e-7, it grows with the square root.
LONGEST_SUM = 2560
_SHORT_SUM = 256  # products of a part, at least, if parts are there to fill the GPU
_ENOUGH = 3  # blocks an SM that fill the GPU
_STEP_WORDS = 8192  # of a step in shared memory, at most: two buffers are 64 KB
_STAGED_WORDS = 40  # of a step on the way through a thread's registers, at most
_STEP_PRODUCTS = 18  # of a sum in a step, at least, as far as whole filter rows allow it
_FILTERS = (64, 96, 32)  # of a block; those before win where they need no more padding
# Rows and columns of a thread.
_RUNS = (*((1, tw) for tw in range(6, 14)), (2, 4), (2, 5), (2, 6), (4, 2), (8, 1))


def portable(spec: ConvSpec) -> Im2win:
    """For any GPU since sm_75, in 48 KB: what PTX for unknown GPUs is made of."""
    return _without_async(spec)


def default(spec: ConvSpec, gpu: Gpu) -> Im2win:
    """The tile of most reuse, C in parts where its blocks would not fill `gpu`.

    Without cp.async where there are more windows than it reaches.
    """
    ways = [_with_async, _without_async] if gpu.has_async_copy else [_without_async]
    found = [_filling(tile, spec, gpu) for tile in ways]
    return next((c for c in found if illegal(c, spec, gpu) is None), found[-1])


def _filling(tile: Callable[..., Im2win], spec: ConvSpec, gpu: Gpu) -> Im2win:
    """What `tile` makes, smaller or in parts if that would not fill `gpu`."""
    config = tile(spec)
    z = im2win.sizes(spec, config.tiling)
    if z.kb * z.hb * z.wb < _ENOUGH * gpu.sms:
        smaller = tile(spec, (32,))
        config = config if illegal(smaller, spec, gpu) else smaller
    while config.buffers > 2 and config.shared_for(spec) > gpu.shared_per_sm // 4:
        config = replace(config, buffers=config.buffers - 1)
    return replace(config, parts=_parts(config, spec, gpu), store=_store(config, spec))


def configs(spec: ConvSpec, hw: Hardware) -> list[Im2win]:
    """The legal configs worth trying, the default first."""
    assert isinstance(hw, Gpu)
    first = default(spec, hw)
    shapes = [replace(first, **change) for change in _blocks(first)]
    runs = sorted(_RUNS, key=lambda run: _cost(spec, *run))[1:4]
    shapes += [replace(first, th=th, tw=tw, bh=8 * th, bw=tw) for th, tw in runs]
    out = [first, *shapes]
    out += [replace(c, bc=bc) for c in out[:4] for bc in (1, 2, 4, 8)]
    out += [replace(first, bs=bs) for bs in range(2, spec.s) if bs * spec.r <= 64]
    out += [replace(first, unroll=n) for n in (512, 2048, 4096)]
    out += [replace(c, store="direct" if c.store == "shared" else "shared") for c in out[:4]]
    out += [replace(first, parts=n) for n in (1, 2, 4, 8, 16)]
    if first.copies == "async":
        out += [replace(c, buffers=n) for c in out[:4] for n in (2, 3, 4)]
    whole = [c for c in dict.fromkeys(out) if c == first or spec.c % (c.bc * c.parts) == 0]
    return [c for c in whole if illegal(c, spec, hw) is None]


def ablation(full: Im2win) -> list[tuple[str, Im2win]]:
    """(what is left out, config): the papers' optimisations, each switched off in turn."""
    plain = replace(full, copies="plain", buffers=1)
    # no other thread uses a window that is in shared memory
    alone: dict[str, Any] = {"bk": full.tk, "bh": 32 * full.th, "bw": full.tw, "lanes": "hhhhh"}
    one: dict[str, Any] = {"bk": 16, "bh": 2, "bw": 8, "tk": 1, "th": 1, "tw": 1, "lanes": "wkwkw"}
    # a thread's pixels lie in different rows: no window of theirs overlaps
    column: dict[str, Any] = {"bh": 8, "th": 8, "bw": 8, "tw": 1, "lanes": "wkwkw"}
    return [
        ("nothing", full),
        ("shared memory", replace(plain, shared=False)),
        ("tiling", replace(full, **alone, buffers=min(2, full.buffers))),
        ("micro-kernel", replace(full, **one)),
        ("overlap of windows", replace(full, **column)),
        ("double buffer", replace(plain, copies="registers")),
        ("prefetch", plain),
    ]


def _blocks(first: Im2win) -> list[dict[str, Any]]:
    """Other blocks of the same thread tile: lanes along columns, more or fewer of each."""
    return [
        {"bh": first.th, "bw": 8 * first.tw, "lanes": "wkwkw"},
        {"bh": 2 * first.bh},
        {"bk": first.bk // 2, "bh": 2 * first.bh},
        {"bk": 2 * first.bk, "bh": first.bh // 2, "lanes": "hkkkh"},
        {"bh": 4 * first.th, "bw": 2 * first.tw, "lanes": "hkwkh"},
        {"bk": first.bk // 2, "tk": first.tk // 2},
    ]


def _with_async(spec: ConvSpec, filters: tuple[int, ...] = _FILTERS) -> Im2win:
    return _tile(spec, Im2win(), filters)


def _without_async(spec: ConvSpec, filters: tuple[int, ...] = _FILTERS) -> Im2win:
    """A step ahead in registers if whole filter rows fit there, else when they are needed."""
    ahead = _tile(spec, Im2win(copies="registers", buffers=1), filters)
    if ahead.step_words(spec) <= _STAGED_WORDS * ahead.conv_threads:
        return ahead
    return _tile(spec, Im2win(copies="plain", buffers=1), filters)


def _tile(spec: ConvSpec, base: Im2win, filters: tuple[int, ...]) -> Im2win:
    """`base` with the run of columns, filters and products of a step that suit the layer."""
    th, tw = min(_RUNS, key=lambda run: _cost(spec, *run))
    bk = min(filters, key=lambda bk: ceil_div(spec.k, bk) * bk)
    config = replace(base, bk=bk, bh=8 * th, bw=tw, th=th, tw=tw, bc=1)
    config = replace(config, bs=_columns(spec, config))
    taps = (config.bs or spec.s) * spec.r
    most = max(1, _STEP_PRODUCTS // taps)
    return replace(config, bc=max(d for d in range(1, most + 1) if spec.c % d == 0))


def _columns(spec: ConvSpec, config: Im2win) -> int:
    """Filter columns of a step: as many as fit, few of them padding; 0 is all."""
    columns = range(1, spec.s + 1)
    fits = [bs for bs in columns if replace(config, bs=bs).step_words(spec) <= _STEP_WORDS]
    bs = min(fits or [1], key=lambda bs: ceil_div(spec.s, bs) * (bs + 1))
    return bs % spec.s


def _cost(spec: ConvSpec, th: int, tw: int) -> float:
    """Issued instructions a useful multiply-add, for 8 filters a thread."""
    padding = ceil_div(spec.ow, tw) * tw / spec.ow
    columns = (tw - 1) * spec.stride + (spec.s - 1) * spec.dilation + 1
    loads = th * min(columns, tw * spec.s) + 2 * spec.s
    return padding * (1 + loads / (8 * th * tw * spec.s))


def _store(config: Im2win, spec: ConvSpec) -> str:
    """Direct where a thread's stores are whole 16-byte vectors."""
    if spec.layout == "NHWC":
        return "shared" if spec.k % config.bk else "direct"
    aligned = spec.layout == "NCHW" and spec.ow % config.bw == 0 and config.tw % 4 == 0
    return "direct" if aligned else "shared"


def _parts(config: Im2win, spec: ConvSpec, gpu: Gpu) -> int:
    """Parts of C: enough blocks for the GPU, sums neither longer than LONGEST_SUM nor short."""
    z, products = im2win.sizes(spec, config.tiling), spec.c * spec.r * spec.s
    wanted = min(_ENOUGH * gpu.sms // (z.kb * z.hb * z.wb), products // _SHORT_SUM)
    wanted = max(1, wanted, ceil_div(products, LONGEST_SUM))
    channels = spec.c // config.bc
    return max(d for d in range(1, min(channels, wanted) + 1) if channels % d == 0)
