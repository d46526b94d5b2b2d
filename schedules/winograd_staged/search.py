"""Which configs of Winograd F(4x4) in three kernels are worth trying, the default first."""

from __future__ import annotations

from dataclasses import replace

from tvm_winograd.gpu import Gpu
from tvm_winograd.shapes import ConvSpec
from tvm_winograd.te import winograd
from tvm_winograd.te.common import ceil_div

from .config import POINTS, Staged
from .legal import illegal

# (GEMM tile, blocks an SM that count as enough for it), largest reuse first; the default is the
# first with enough.
LADDER = (
    (Staged(), 10),
    (Staged(bk=32, tk=4, lanes="ppkkp"), 4),
    (Staged(bk=32, bp=32, tk=4, lanes="pkkkp", patches=1), 3),
    (Staged(bp=16, tk=4, lanes="kkkkp", threads=64, patches=1), 0),
)
# 4 to 12 % slower than the first of the ladder at (256, 14^2), batch 128.
_OTHERS = (
    Staged(bk=128, bp=128, lanes="ppkkp", patches=4, tiles=2),
    Staged(bk=32, lanes="ppkkp"),
    Staged(bk=128, tk=16, lanes="ppkkp"),
)
_MOST_CHUNKS = 8


def portable(spec: ConvSpec) -> Staged:
    """For any GPU since sm_75, in 48 KB: what PTX for unknown GPUs is made of."""
    return Staged(copies="registers", buffers=1, row=_row(spec))


def default(spec: ConvSpec, gpu: Gpu) -> Staged:
    """The largest GEMM tile that fills `gpu`, is not mostly padding, and copies as `gpu` can.

    In chunks where V has more elements than cp.async reaches.
    """
    config = portable(spec)
    for tile, enough in LADDER:
        config = _fit(tile, spec, gpu)
        z = winograd.sizes(spec, config.tiling)
        if z.bp <= z.p and POINTS * z.kb * z.pb >= enough * gpu.sms:
            break
    ways = [replace(config, chunks=n) for n in range(1, _MOST_CHUNKS + 1)]
    return next((c for c in ways if illegal(c, spec, gpu) is None), portable(spec))


def configs(spec: ConvSpec, gpu: Gpu) -> list[Staged]:
    """The legal configs worth trying, the default first."""
    first = default(spec, gpu)
    out = [first, replace(first, row=0 if first.row else 8), replace(first, threads=128, tiles=2)]
    out += [_fit(tile, spec, gpu) for tile in (*(t for t, _ in LADDER), *_OTHERS)]
    out += [replace(first, patches=n) for n in (1, 2, 4)]
    out += [replace(first, tiles=n) for n in (1, 2, 4)]
    if first.copies == "async":
        out += [replace(first, buffers=n) for n in (3, 6)]
    pb = winograd.sizes(spec, first.tiling).pb
    out += [replace(first, chunks=n) for n in range(2, _MOST_CHUNKS + 1) if pb % n == 0]
    return [c for c in dict.fromkeys(out) if illegal(c, spec, gpu) is None]


def _fit(tile: Staged, spec: ConvSpec, gpu: Gpu) -> Staged:
    """`tile` with the way of copying that `gpu` has and the way of storing that `spec` needs."""
    config = replace(tile, row=_row(spec))
    if spec.layout == "NHWC":
        config = replace(config, tiles=8 * config.bp // config.threads)  # 8 filters: 32 bytes
    return config if gpu.has_async_copy else replace(config, copies="registers", buffers=1)


def _row(spec: ConvSpec) -> int:
    """Tiles of a row that goes through shared memory, or 0: a row is whole 16-byte vectors.

    A power of two lets a map's rows follow each other. The output transform of (256, 14^2) takes
    half as long through shared memory.
    """
    if spec.layout == "NHWC":
        return 1
    if spec.layout == "CHWN" or spec.ow % 4 == 0:
        return 0
    cols = ceil_div(spec.ow, 4)
    return cols if cols in (1, 2, 4, 8) else 8
