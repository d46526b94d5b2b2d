"""Which configs of the tensor-core kernel are worth trying, and the default among them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from tvm_winograd.gpu import Gpu
from tvm_winograd.shapes import ConvSpec
from tvm_winograd.te.common import ceil_div

from . import cost, sizes
from .config import TILES, TensorCore
from .legal import illegal

SHORT = 128  # products: a sum that is promoted every step, where truncation would show
_MOST_STAGES, _LEAST_STAGES = 8, 4
_MOST_PATCH = 416  # rows: two patches take half of an SM's shared memory
_LEAST_SHARES = (2, 4, 8, 16, 32)  # steps of a share
_MOST = 24  # candidates


def default(spec: ConvSpec, hw: Gpu) -> TensorCore:
    """The config that is estimated to be fastest."""
    return configs(spec, hw)[0]


def configs(spec: ConvSpec, hw: Gpu) -> list[TensorCore]:
    """The legal configs worth trying, the default first."""
    return list(_configs(spec, hw))


@lru_cache(maxsize=256)
def _configs(spec: ConvSpec, hw: Gpu) -> tuple[TensorCore, ...]:
    tiles = [c for tile in TILES for c in _tiles(*tile, spec, hw)]
    found = [c for tile in tiles for c in _with_shares(tile, spec)]
    legal = [c for c in dict.fromkeys(found) if illegal(c, spec, hw) is None]
    ordered = sorted(legal, key=lambda c: cost.seconds(c, spec, hw))
    first = ordered[0]
    near = [replace(first, ordered=not first.ordered), replace(first, promote=3 - first.promote)]
    near.append(replace(first, stages=max(2, first.stages - 2)))
    return tuple([first, *near, *ordered[1:]][:_MOST])


def _tiles(rows: int, filters: int, spec: ConvSpec, hw: Gpu) -> Iterator[TensorCore]:
    """A tile that gathers each tap, and with a patch of the input where one is legal."""
    promote = 1 if sizes.products(spec) <= SHORT else 2
    # Turns cost three consumers 1 to 5 %, and bring two as much (H200, 2026-12-01).
    ordered = rows == 128
    config = TensorCore(rows, filters, promote, _MOST_STAGES, ordered=ordered, blocks=hw.sms)
    yield _fitted(config, hw)
    roomy = replace(config, patch=_MOST_PATCH, stages=_LEAST_STAGES)
    if spec.r * spec.s > 1 and illegal(roomy, spec, hw) is None:
        box = sizes.box(spec, roomy)
        assert box is not None
        patch = ceil_div(sizes.patch_rows(spec, box), 8) * 8
        yield _fitted(replace(config, patch=patch), hw)


def _fitted(config: TensorCore, hw: Gpu) -> TensorCore:
    """With as many stages as shared memory holds."""
    while config.shared_bytes > hw.shared_per_block:
        config = replace(config, stages=config.stages - 1)
    return config


def _with_shares(config: TensorCore, spec: ConvSpec) -> Iterator[TensorCore]:
    """The config, and with the last tiles' steps divided in several ways.

    With a patch shares lose: (128, 28^2), batch 128 took 187 us, not 149 (H200, 2026-12-01).
    """
    yield config
    if config.patch:
        return
    shared = sizes.shared_tiles(spec, replace(config, shares=1)) * sizes.steps(spec)
    for least in _LEAST_SHARES:
        if shares := min(config.blocks, shared // least):
            yield replace(config, shares=shares)
