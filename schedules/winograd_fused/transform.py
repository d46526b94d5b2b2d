"""The fused kernel's input transform: a step's patches to registers, V to shared memory."""

from __future__ import annotations

from tvm_winograd.ir import marks

from ..base import blocks
from ..base.blocks import Loop, Schedule
from ..base.register_tile import next_power
from ..base.stages import stage
from .config import V_PAD, FusedTile


@stage
def input_transform(sch: Schedule, config: FusedTile, layout: str, step: Loop) -> None:
    """V = B^T d B: a thread a patch; patches are loaded apart, to be fetched a step ahead.

    Where not every thread has one, TVM does not see it behind the deal: there B^T d would be
    computed by all threads and patches of later steps be loaded. So B^T d is written into V's
    block (nvcc computes each of its elements once), and patches are moved before V is dealt.

    loops: step gets c e p1 p0 p2 of V and c p a b of the patches, dealt to threads; leaves none
    """
    v, t, d = (sch.get_sblock(name) for name in ("wino_V", "wino_T", "wino_D"))
    c, e, pb, p1, p0, p2 = blocks.move(sch, v, step)
    if config.idle_threads:
        sch.compute_inline(t)
        patch = blocks.move(sch, d, step)
    turn = _deal_patches(sch, config, layout, c, [pb, p1, p0], p2, [e])
    sch.unroll(e)
    sch.storage_align(v, 0, 0, 32, V_PAD)
    if not config.idle_threads:
        blocks.unroll(sch, *blocks.move(sch, t, turn))
        sch.set_scope(t, 0, "local")
        patch = blocks.move(sch, d, step)
    c, p, a, b = patch
    p, p2 = sch.split(p, [None, config.fragment])
    turn = _deal_patches(sch, config, layout, c, [p], p2, [a, b])
    if config.held:
        sch.annotate(turn, marks.HELD, 1)
    blocks.unroll(sch, a, b)
    sch.set_scope(d, 0, "local")


def _deal_patches(
    sch: Schedule,
    config: FusedTile,
    layout: str,
    c: Loop,
    p: list[Loop],
    p2: Loop,
    inner: list[Loop],
) -> Loop:
    """The patches of a step to threads, lanes along contiguous memory; returns the innermost turn.

    NHWC: lanes along channels of 4 neighbouring tiles. A thread's patches differ in the channel
    only: TVM keeps them in one array, whose shape is the bounding box of their indices.
    """
    outer = []
    if next_power(config.bp) != config.bp:  # TVM sees a thread's patch if lanes count more tiles
        tiles = sch.fuse(*p)
        one, tiles = sch.split(tiles, [None, next_power(blocks.extent(sch, tiles))])
        outer, p = [one], [tiles]
    turns, c = sch.split(c, [config.patches, None])
    outer.append(turns)
    patch = [*p, c, p2] if layout == "NHWC" else [c, *p, p2]
    sch.reorder(*outer, *patch, *inner)
    return blocks.deal(sch, patch, config.warps, outer=outer)
