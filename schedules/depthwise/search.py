"""Which configs of the depthwise CUDA kernel are worth trying, the default first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tvm_winograd.gpu import PORTABLE, Gpu
from tvm_winograd.shapes import ConvSpec

from .config import Depthwise
from .cost import cost
from .legal import illegal

_TILES = ((2, 1), (4, 1), (7, 1), (8, 1), (1, 2), (1, 4), (2, 2), (4, 2), (4, 4))  # th, tw
_CHANNELS = (8, 16, 32)


def default(spec: ConvSpec, gpu: Gpu) -> Depthwise:
    """The cheapest of the tiles whose patch registers hold, without shared memory."""
    return min(_ladder(spec, gpu), key=lambda c: cost(c, spec, gpu))


def portable(spec: ConvSpec) -> Depthwise:
    """For any GPU since sm_75."""
    return default(spec, PORTABLE)


def configs(spec: ConvSpec, gpu: Gpu) -> list[Depthwise]:
    """The legal configs worth trying, the default first."""
    first = default(spec, gpu)
    tiles = list(_ladder(spec, gpu))
    out = [first, *(replace(first, threads=n) for n in (64, 128, 512)), *tiles]
    out += [replace(c, channels=n) for c in tiles if c.tw == 1 for n in _CHANNELS]
    return [c for c in dict.fromkeys(out) if illegal(c, spec, gpu) is None]


def _ladder(spec: ConvSpec, gpu: Gpu) -> Iterator[Depthwise]:
    """Legal tiles, one at least."""
    filters = spec.k // spec.groups
    tk = next(n for n in (4, 3, 2, 1) if filters % n == 0)
    legal = [c for th, tw in _TILES if not illegal(c := Depthwise(th, tw, tk), spec, gpu)]
    yield from legal or [Depthwise(2, 1, tk, patch=False)]
