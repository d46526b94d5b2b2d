"""Which configs of the im2win CUDA kernels are worth trying, the default, and the ablation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

from tvm_winograd.gpu import Gpu, Hardware
from tvm_winograd.shapes import ConvSpec
from tvm_winograd.te import im2win
from tvm_winograd.te.common import ceil_div

from .im2win_config import Im2win, illegal
from .im2win_time import seconds

# Products of one running sum: 1,152 err 6.1e-7 and 576 4.3e-7, it grows with the square root.
LONGEST_SUM = 2560
_SHORT_SUM = 256  # products of a part, at least, if parts are there to fill the GPU
_ENOUGH = 3  # blocks an SM that fill the GPU
_STEP_WORDS = 8192  # of a step in shared memory, at most: two buffers are 64 KB
_STAGED_WORDS = 40  # of a step on the way through a thread's registers, at most
_STEP_PRODUCTS = 18  # of a sum in a step, at least, as far as whole filter rows allow it
_FILTERS = (64, 96, 32)  # of a block; those before win where they need no more padding
_BLOCKS = ((64, 8), (96, 8), (32, 8), (32, 4), (16, 4))  # filters of a block and a thread
# Rows and columns of a thread.
_RUNS = (*((1, tw) for tw in range(6, 14)), (2, 4), (2, 5), (2, 6), (4, 2), (8, 1))
_SHORT_RUN = (1, 4)  # more blocks, where there are few
_FLAT_WORDS = range(20, 68, 8)  # of a step: odd numbers of vectors
_FLATS = 2  # of these, those with least padding
_MOST = 16  # candidates


def portable(spec: ConvSpec) -> Im2win:
    """For any GPU since sm_75, in 48 KB: what PTX for unknown GPUs is made of."""
    ahead = _tile(spec, Im2win(copies="registers", buffers=1))
    if ahead.step_words(spec) <= _STAGED_WORDS * ahead.conv_threads:
        return ahead
    return _tile(spec, Im2win(copies="plain", buffers=1))


def default(spec: ConvSpec, gpu: Gpu) -> Im2win:
    """The config estimated to be fastest."""
    return _ranked(spec, gpu)[0]


def configs(spec: ConvSpec, hw: Hardware) -> list[Im2win]:
    """The legal configs worth trying: the default, its neighbours, the best of each other tile."""
    assert isinstance(hw, Gpu)
    first, *others = _ranked(spec, hw)
    near = [replace(first, store="shared")]
    if spec.layout == "NHWC" or _whole_vectors(first, spec):
        near.append(replace(first, store="direct"))
    if first.copies == "async":
        near += [replace(first, buffers=n) for n in (first.buffers - 1, first.buffers + 1)]
    near += [replace(first, parts=n) for n in (first.parts // 2, 2 * first.parts) if n]
    near += [] if first.flat else [_wide(first, spec, hw)]
    legal = [c for c in near if spec.c % (c.bc * c.parts) == 0 and illegal(c, spec, hw) is None]
    tiles = {(c.bk, c.tk, c.bh, c.th, c.tw, c.flat): c for c in reversed(others)}
    best = sorted(tiles.values(), key=others.index)
    return list(dict.fromkeys([first, *legal, *best]))[:_MOST]


def ablation(full: Im2win) -> list[tuple[str, Im2win]]:
    """(what is left out, config): the papers' optimisations, each switched off in turn."""
    plain = replace(full, copies="plain", buffers=1)
    # no other thread uses a window that is in shared memory
    alone: dict[str, Any] = {"bk": full.tk, "bh": 32 * full.th, "bw": full.tw, "lanes": "hhhhh"}
    one: dict[str, Any] = {"bk": 16, "bh": 2, "bw": 8, "tk": 1, "th": 1, "tw": 1, "lanes": "wkwkw"}
    # a thread's pixels lie in different rows: no window of theirs overlaps
    column: dict[str, Any] = {"bh": 8, "th": 8, "bw": 8, "tw": 1, "lanes": "wkwkw"}
    overlap = [] if full.flat else [("overlap of windows", replace(full, **column))]
    return [
        ("nothing", full),
        ("shared memory", replace(plain, shared=False, flat=0)),
        ("tiling", replace(full, **alone, buffers=min(2, full.buffers))),
        ("micro-kernel", replace(full, **one)),
        *overlap,
        ("double buffer", replace(plain, copies="registers")),
        ("prefetch", plain),
    ]


def _wide(config: Im2win, spec: ConvSpec, gpu: Gpu) -> Im2win:
    """`config` with lanes along columns: whole lines of the output are stored together."""
    block = replace(config, th=1, lanes="wkwkw", store="shared")
    wide = [replace(block, bh=2, bw=8 * tw, tw=tw) for th, tw in _RUNS if th == 1]
    return min(wide, key=lambda c: seconds(c, spec, gpu))


@lru_cache(maxsize=256)
def _ranked(spec: ConvSpec, gpu: Gpu) -> tuple[Im2win, ...]:
    """The legal ones of all tiles, fastest by estimate first; `portable` if there is none.

    Without cp.async where there are more windows than it reaches.
    """
    ways = [Im2win(copies="registers", buffers=1)]
    for base in [Im2win()] * gpu.has_async_copy + ways:
        shaped = (c for tile in _tiles(spec, base, gpu) for c in _filling(tile, spec, gpu))
        if legal := [c for c in dict.fromkeys(shaped) if illegal(c, spec, gpu) is None]:
            return tuple(sorted(legal, key=lambda c: seconds(c, spec, gpu)))
    return (portable(spec),)


def _tiles(spec: ConvSpec, base: Im2win, gpu: Gpu) -> Iterator[Im2win]:
    """Blocks, thread tiles, steps and buffers that a layer may want."""
    buffers = (3, 2) if base.copies == "async" else (1,)
    runs = sorted(_RUNS, key=lambda run: _cost(spec, *run))[:3]
    z = im2win.sizes(spec, _tile(spec, base).tiling)
    if z.kb * z.hb * z.wb < _ENOUGH * gpu.sms:
        runs.append(_SHORT_RUN)
    for bk, tk in _BLOCKS:
        for th, tw in runs:
            block = replace(base, bk=bk, tk=tk, bw=tw, th=th, tw=tw, bc=1)
            for rows in (8, 16)[: 1 + (th == 1)]:
                tile = replace(block, bh=rows * th)
                tile = replace(tile, bs=_columns(spec, tile))
                steps = {_channels(spec, tile, n * _STEP_PRODUCTS) for n in (1, 2)}
                yield from (replace(tile, bc=bc, buffers=n) for bc in steps for n in buffers)
        # Windows that share no word: lanes along columns, a thread's pixels in a column.
        block = replace(base, bk=bk, tk=tk, bh=8, bw=8, th=8, tw=1, lanes="wkwkw", bc=1)
        for bh, flat in ((bh, flat) for bh in (8, 16) for flat in _flats(spec)):
            yield from (replace(block, bh=bh, flat=flat, buffers=n) for n in buffers)


def _filling(tile: Im2win, spec: ConvSpec, gpu: Gpu) -> Iterator[Im2win]:
    """`tile` with the ways to sum and to store that `spec` needs on `gpu`."""
    stored = replace(tile, store=_store(tile, spec))
    for enough in (0, _ENOUGH)[: 2 - bool(tile.flat)]:
        yield replace(stored, parts=1 if tile.flat else _parts(tile, spec, gpu, enough))


def _tile(spec: ConvSpec, base: Im2win) -> Im2win:
    """`base` with the run of columns, filters and products of a step that suit the layer."""
    th, tw = min(_RUNS, key=lambda run: _cost(spec, *run))
    bk = min(_FILTERS, key=lambda bk: ceil_div(spec.k, bk) * bk)
    config = replace(base, bk=bk, bh=8 * th, bw=tw, th=th, tw=tw, bc=1)
    config = replace(config, bs=_columns(spec, config))
    return replace(config, bc=_channels(spec, config, _STEP_PRODUCTS))


def _columns(spec: ConvSpec, config: Im2win) -> int:
    """Filter columns of a step: as many as fit, few of them padding; 0 is all."""
    columns = range(1, spec.s + 1)
    fits = [bs for bs in columns if replace(config, bs=bs).step_words(spec) <= _STEP_WORDS]
    bs = min(fits or [1], key=lambda bs: ceil_div(spec.s, bs) * (bs + 1))
    return bs % spec.s


def _channels(spec: ConvSpec, config: Im2win, products: int) -> int:
    """Channels of a step that make `products` of a sum, a divisor of C."""
    most = max(1, products // ((config.bs or spec.s) * spec.r))
    return max(d for d in range(1, most + 1) if spec.c % d == 0)


def _flats(spec: ConvSpec) -> list[int]:
    """Words of a step for windows of whole vectors, least padding first; none for long sums."""
    products = spec.c * spec.r * spec.s
    if products > LONGEST_SUM or spec.stride * spec.c * spec.r % 4 or spec.dilation > 1:
        return []
    return sorted(_FLAT_WORDS, key=lambda words: ceil_div(products, words) * words)[:_FLATS]


def _cost(spec: ConvSpec, th: int, tw: int) -> float:
    """Issued instructions a useful multiply-add, for 8 filters a thread."""
    padding = ceil_div(spec.ow, tw) * tw / spec.ow
    columns = (tw - 1) * spec.stride + (spec.s - 1) * spec.dilation + 1
    loads = th * min(columns, tw * spec.s) + 2 * spec.s
    return padding * (1 + loads / (8 * th * tw * spec.s))


def _store(config: Im2win, spec: ConvSpec) -> str:
    """Direct where a thread's stores are whole 16-byte vectors.

    Not in blocks of 16 rows: 253 us against 223 (11x11, 231²), of 8 they were as fast.
    """
    if spec.layout == "NHWC":
        return "shared" if spec.k % config.bk else "direct"
    return "direct" if _whole_vectors(config, spec) and config.bh == 8 * config.th else "shared"


def _whole_vectors(config: Im2win, spec: ConvSpec) -> bool:
    """Whether a thread's neighbours in a row of the output are whole 16-byte vectors."""
    return spec.layout == "NCHW" and spec.ow % config.bw == 0 and config.tw % 4 == 0


def _parts(config: Im2win, spec: ConvSpec, gpu: Gpu, enough: int) -> int:
    """Parts of C: sums neither longer than LONGEST_SUM nor short, for `enough` blocks an SM."""
    z, products = im2win.sizes(spec, config.tiling), spec.c * spec.r * spec.s
    wanted = min(enough * gpu.sms // (z.kb * z.hb * z.wb), products // _SHORT_SUM)
    wanted = max(1, wanted, ceil_div(products, LONGEST_SUM))
    channels = spec.c // config.bc
    return max(d for d in range(1, min(channels, wanted) + 1) if channels % d == 0)
