"""Which configs of the im2win CUDA kernels are worth trying, the default first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache, lru_cache
from itertools import product, zip_longest

from tvm_winograd.gpu import Gpu
from tvm_winograd.shapes import ConvSpec
from tvm_winograd.te.common import ceil_div

from ..base.legal import LONGEST_SUM
from .config import Im2win, Store
from .cost import seconds
from .legal import illegal

_SHORT_SUM = 256  # products of a part, at least, if parts are there to fill the GPU
_ENOUGH = (0, 3, 5)  # blocks an SM that fill the GPU; 0: no more parts than sums need
_STEP_WORDS = 8192  # of a step in shared memory, at most: two buffers are 64 KB
_STAGED_WORDS = 40  # of a step on the way through a thread's registers, at most
_STEP_PRODUCTS = 18  # of a sum in a step, at least, as far as whole filter rows allow it
_MORE_PRODUCTS = (9, 36, 72)  # of the best tiles
_FILTERS = (64, 96, 32)  # of a block; those before win where they need no more padding
# Filters of a block and a thread.
_BLOCKS = ((64, 8), (96, 8), (128, 8), (128, 16), (64, 4), (32, 8), (32, 4), (16, 4))
_PADDED = 1.3  # filters of blocks, at most, to those of the layer
# Rows and columns of a thread.
_RUNS = (*((1, tw) for tw in range(4, 14)), (2, 4), (2, 5), (2, 6), (4, 2), (8, 1))
_BEST_RUNS = 7  # of these
_SHORT_RUN = (1, 4)  # more blocks, where there are few
_PADDED_RUNS = 1.1  # runs of columns of blocks, at most, to those of the layer
_THREADS = range(64, 257)  # of a block
_PLAIN = ((64, 8), (96, 8), (32, 8), (32, 4), (16, 4))  # those of `_plain` tiles
_SURE = 1.06  # times as slow by estimate is slower: half of the estimates err by less
_REFINED = 10  # tiles of which other steps and buffers are looked at
_FLAT_WORDS = range(20, 68, 8)  # of a step: odd numbers of vectors
_FLATS = 2  # of these, those with least padding
_MOST = 24  # candidates


def portable(spec: ConvSpec) -> Im2win:
    """For any GPU since sm_75, in 48 KB: what PTX for unknown GPUs is made of."""
    ahead = _tile(spec, Im2win(copies="registers", buffers=1))
    if ahead.step_words(spec) <= _STAGED_WORDS * ahead.conv_threads:
        return ahead
    return _tile(spec, Im2win(copies="plain", buffers=1))


def default(spec: ConvSpec, gpu: Gpu) -> Im2win:
    """The config estimated to be fastest, a `_plain` one if no other is clearly faster."""
    return _ranked(spec, gpu)[0]


def configs(spec: ConvSpec, gpu: Gpu) -> list[Im2win]:
    """The legal configs worth trying: the default, its neighbours, the best of each other tile."""
    first, *others = _ranked(spec, gpu)
    near = [replace(first, store="shared")]
    if spec.layout == "NHWC" or _whole_vectors(first, spec):
        near.append(replace(first, store="direct"))
    if first.copies == "async":
        near += [replace(first, buffers=n) for n in (first.buffers - 1, first.buffers + 1)]
    near += [replace(first, parts=n) for n in (first.parts // 2, 2 * first.parts) if n]
    near += [replace(first, lanes=lanes) for lanes in _lanes(first.grid_tile)[1:3]]
    legal = [c for c in near if spec.c % (c.bc * c.parts) == 0 and illegal(c, spec, gpu) is None]
    best: dict[tuple[int, ...], Im2win] = {}
    for config in others:
        best.setdefault(_tile_of(config), config)
    return list(dict.fromkeys([first, *legal, *best.values()]))[:_MOST]


def _tile_of(config: Im2win) -> tuple[int, ...]:
    c = config
    return c.bk, c.tk, c.bh, c.th, c.bw, c.tw, c.flat


@lru_cache(maxsize=256)
def _ranked(spec: ConvSpec, gpu: Gpu) -> tuple[Im2win, ...]:
    """The default, then the legal ones of all tiles, fastest by estimate first; or `portable`.

    Without cp.async where there are more windows than it reaches.
    """
    ways = [Im2win(copies="registers", buffers=1)]
    for base in [Im2win(buffers=2)] * gpu.has_async_copy + ways:
        if found := _timed(_tiles(spec, base), spec, gpu):
            plain = [c for c in found if _plain(c, spec)]
            tiles = [*_best_tiles(found, found), *_best_tiles(plain, found)]
            found |= _timed((c for tile in tiles for c in _steps(tile, spec)), spec, gpu)
            ranked = sorted(found, key=lambda c: (found[c], abs(c.buffers - 3)))
            first = next((c for c in ranked if _plain(c, spec)), ranked[0])
            if found[first] > _SURE * found[ranked[0]]:
                first = ranked[0]
            return tuple(dict.fromkeys([first, *ranked]))
    return (portable(spec),)


def _plain(config: Im2win, spec: ConvSpec) -> bool:
    """Whether `config` is of the kind that was measured for all of benchmarks/selector.py."""
    c = config
    products = c.bc * (c.bs or spec.s) * spec.r
    if (c.bk, c.tk) not in _PLAIN or c.buffers > 3:
        return False
    if c.bc > 1 and products > 2 * _STEP_PRODUCTS:
        return False
    return c.flat > 0 or (c.bw == c.tw and c.lanes == Im2win.lanes and c.bh // c.th in (8, 16))


def _best_tiles(configs: Iterable[Im2win], times: dict[Im2win, float]) -> list[Im2win]:
    """The best of each of the best tiles."""
    best = {_tile_of(c): c for c in sorted(configs, key=lambda c: -times[c])}
    return sorted(best.values(), key=lambda c: times[c])[:_REFINED]


def _timed(tiles: Iterable[Im2win], spec: ConvSpec, gpu: Gpu) -> dict[Im2win, float]:
    """The legal ones with the ways to sum and to store that suit them: estimated seconds."""
    filled = dict.fromkeys(c for tile in tiles for c in _filling(tile, spec, gpu))
    return {c: seconds(c, spec, gpu) for c in filled if illegal(c, spec, gpu) is None}


def _tiles(spec: ConvSpec, base: Im2win) -> Iterator[Im2win]:
    """Blocks and thread tiles that a layer may want, with one step each."""
    least = min(ceil_div(spec.k, bk) * bk for bk, _ in _BLOCKS)
    runs = sorted(_RUNS, key=lambda run: _cost(spec, *run))[:_BEST_RUNS]
    runs += [_SHORT_RUN] * (_SHORT_RUN not in runs)
    for bk, tk in _BLOCKS:
        if ceil_div(spec.k, bk) * bk > _PADDED * least:
            continue
        for th, tw in runs:
            for rows, across in _grids(spec, bk // tk, tw):
                bh, bw, lanes = rows * th, across * tw, _lanes((bk // tk, rows, across))[0]
                tile = replace(base, bk=bk, tk=tk, bh=bh, th=th, bw=bw, tw=tw, lanes=lanes, bc=1)
                tile = replace(tile, bs=_columns(spec, tile))
                yield replace(tile, bc=_channels(spec, tile, _STEP_PRODUCTS))
        # Windows that share no word: lanes along columns, a thread's pixels in a column.
        block = replace(base, bk=bk, tk=tk, bh=8, bw=8, th=8, tw=1, lanes="wkwkw", bc=1)
        for bh, flat in ((bh, flat) for bh in (8, 16) for flat in _flats(spec)):
            yield replace(block, bh=bh, flat=flat)


def _grids(spec: ConvSpec, filters: int, tw: int) -> Iterator[tuple[int, int]]:
    """(rows, runs of columns) of threads beside those along filters."""
    runs = ceil_div(spec.ow, tw)
    for across in (1, 2, 4, 8):
        for rows in (1, 2, 4, 8, 16, 32):
            if filters * rows * across in _THREADS and _lanes((filters, rows, across)):
                if ceil_div(runs, across) * across <= _PADDED_RUNS * runs:
                    yield rows, across


def _steps(tile: Im2win, spec: ConvSpec) -> Iterator[Im2win]:
    """`tile` with other steps and buffers."""
    channels = {tile.bc}
    if not tile.flat:
        channels |= {_channels(spec, tile, products) for products in _MORE_PRODUCTS}
    for bc in sorted(channels):
        for buffers in (2, 3, 4) if tile.copies == "async" else (1,):
            yield replace(tile, bc=bc, buffers=buffers)


@cache
def _lanes(grid: tuple[int, int, int]) -> list[str]:
    """Lanes for that many threads along filters, rows and columns; most along pixels first.

    A load of weights brings filters of each lane along them: (512, 7²) took 14 % longer with four
    bits of filters than with two.
    """
    most = [min(5, (n & -n).bit_length() - 1) for n in grid]
    found = []
    for k, h in product(range(most[0] + 1), range(most[1] + 1)):
        if 0 <= (w := 5 - k - h) <= most[2] and (k > 0 or most[0] == 0):
            pixels, filters = ["w"] * w + ["h"] * h, ["k"] * k
            pairs = zip_longest(pixels, filters, fillvalue="")
            found.append("".join(p + f for p, f in pairs)[::-1])
    # more than 8 rows meet banks twice
    return sorted(found, key=lambda lanes: (lanes.count("h") > 3, lanes.count("k")))


def _filling(tile: Im2win, spec: ConvSpec, gpu: Gpu) -> Iterator[Im2win]:
    """`tile` with the ways to sum and to store that `spec` needs on `gpu`."""
    ways = [1] if tile.flat else [_parts(tile, spec, gpu, enough) for enough in _ENOUGH]
    for parts in dict.fromkeys(ways):
        # sums of parts in vectors: 10 % off at (256 -> 256, 14²)
        vectors = parts > 1 and tile.tw % 4 == 0
        yield replace(tile, parts=parts, store="direct" if vectors else _store(tile, spec))


def _tile(spec: ConvSpec, base: Im2win) -> Im2win:
    """`base` with the run of columns, filters and products of a step that suit the layer."""
    th, tw = min(_RUNS, key=lambda run: _cost(spec, *run))
    bk = min(_FILTERS, key=lambda bk: ceil_div(spec.k, bk) * bk)
    config = replace(base, bk=bk, bh=8 * th, bw=tw, th=th, tw=tw, bc=1)
    config = replace(config, bs=_columns(spec, config))
    return replace(config, bc=_channels(spec, config, _STEP_PRODUCTS))


def _columns(spec: ConvSpec, config: Im2win) -> int:
    """Filter columns of a step: as many as fit, few of them padding; 0 is all."""
    if config.step_words(spec) <= _STEP_WORDS:  # bs is 0
        return 0
    fits = [bs for bs in range(1, spec.s) if replace(config, bs=bs).step_words(spec) <= _STEP_WORDS]
    return min(fits or [1], key=lambda bs: ceil_div(spec.s, bs) * (bs + 1)) % spec.s


def _channels(spec: ConvSpec, config: Im2win, products: int) -> int:
    """Channels of a step that make `products` of a sum, a divisor of C."""
    most = max(1, products // ((config.bs or spec.s) * spec.r))
    return max(d for d in range(1, most + 1) if spec.c % d == 0)


def _flats(spec: ConvSpec) -> list[int]:
    """Words of a step for windows of whole vectors, least padding first; none for long sums."""
    products = spec.c * spec.r * spec.s
    if products > LONGEST_SUM or spec.strides[1] * spec.c * spec.r % 4 or spec.dilations[1] > 1:
        return []
    return sorted(_FLAT_WORDS, key=lambda words: ceil_div(products, words) * words)[:_FLATS]


def _cost(spec: ConvSpec, th: int, tw: int) -> float:
    """Issued instructions a useful multiply-add, for 8 filters a thread."""
    padding = ceil_div(spec.ow, tw) * tw / spec.ow
    columns = (tw - 1) * spec.strides[1] + (spec.s - 1) * spec.dilations[1] + 1
    loads = th * min(columns, tw * spec.s) + 2 * spec.s
    return padding * (1 + loads / (8 * th * tw * spec.s))


def _store(config: Im2win, spec: ConvSpec) -> Store:
    """Direct where a thread's stores are whole 16-byte vectors.

    Not in blocks of 16 rows: 13 % slower (11x11, 231²); of 8 they were as fast.
    """
    if spec.layout == "NHWC":
        return "shared" if spec.k % config.bk else "direct"
    return "direct" if _whole_vectors(config, spec) and config.bh == 8 * config.th else "shared"


def _whole_vectors(config: Im2win, spec: ConvSpec) -> bool:
    """Whether a thread's neighbours in a row of the output are whole 16-byte vectors."""
    return spec.layout == "NCHW" and spec.ow % config.bw == 0 and config.tw % 4 == 0


def _parts(config: Im2win, spec: ConvSpec, gpu: Gpu, enough: int) -> int:
    """Parts of C: sums neither longer than LONGEST_SUM nor short, for `enough` blocks an SM."""
    z, products = config.sizes(spec), spec.c * spec.r * spec.s
    wanted = min(enough * gpu.sms // (z.kb * z.hb * z.wb), products // _SHORT_SUM)
    wanted = max(1, wanted, ceil_div(products, LONGEST_SUM))
    channels = spec.c // config.bc
    return max(d for d in range(1, min(channels, wanted) + 1) if channels % d == 0)
