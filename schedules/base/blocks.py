"""Schedule moves that several kernels share. `Block` and `Loop` are random variables of TVM.

The loops of a tiled product, in the order in which TE declares them (te/winograd.py, te/gemm.py):

    kb   blocks of filters               pb   blocks of pixels, or of output tiles
    k1   groups of neighbours a thread   p1   likewise
    k0   threads along filters           p0   threads along pixels or tiles
    k2   neighbours in memory, 4 mostly  p2   likewise
    c    channels: `step` outside, `bc` of them inside; gemm calls its sum (c, r, s) q
    e    (eps, nu) pairs of Winograd     g    groups
    i j  rows and columns of a Winograd output tile (a, b: of an input patch)

A block has kb and pb, its thread k0 and p0; the thread owns k1 x k2 filters of p1 x p2 pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .stages import stage

Schedule = Any  # tvm.s_tir.Schedule; TVM ships no useful types
Block = Any
Loop = Any

WARP = 32
SPATIAL, REDUCE = 0, 2  # of tirx.IterVar.iter_type
# What a kernel with cp.async needs in its PassContext. TVM's storage rewrite turns a buffer of
# 16-byte accesses into one of float4, which its async copies do not understand.
ASYNC_COPY = {"tirx.use_async_copy": True, "tirx.disable_storage_rewrite": True}
# Elements of 4 bytes that cp.async reaches: TVM's code for it turns an index into bytes as an int,
# so that a workspace of 2.4 GB was read outside (illegal addresses, H200).
MOST_COPIED = 2**29


def too_large(elements: int, copied: int = 0) -> str | None:
    """None, or why a kernel's indices do not reach all of its buffers.

    Args:
        elements: of the largest.
        copied: of the largest that cp.async reads, of 4 bytes each.
    """
    if elements >= 2**31:
        return f"a buffer of {elements} elements; indices are 32-bit"
    if copied > MOST_COPIED:
        return f"cp.async from a buffer of {copied} elements; its offsets are 32-bit, in bytes"
    return None


def extent(sch: Schedule, loop: Loop) -> int:
    return int(sch.get(loop).extent)


def kinds(sch: Schedule, block: Block) -> list[int]:
    """SPATIAL or REDUCE of each of a block's variables."""
    return [int(v.iter_type) for v in sch.get(block).iter_vars]


def loops_inside(sch: Schedule, block: Block, anchor: Loop) -> list[Loop]:
    """The loops of `block` inside `anchor`, outermost first."""
    loops = sch.get_loops(block)
    var = sch.get(anchor).loop_var
    depth = next(i for i, l in enumerate(loops) if sch.get(l).loop_var.same_as(var))
    return loops[depth + 1 :]


def move(sch: Schedule, block: Block, anchor: Loop) -> list[Loop]:
    """compute_at with unit loops kept, so that there is one loop a dimension; returns them."""
    sch.compute_at(block, anchor, preserve_unit_loops=True)
    return loops_inside(sch, block, anchor)


def unroll(sch: Schedule, *loops: Loop) -> None:
    for loop in loops:
        sch.unroll(loop)


def pipeline(
    sch: Schedule, loop: Loop, stage: list[int], order: list[int], copies_async: bool = False
) -> None:
    """Overlap the statements of `loop`'s body over its iterations; stage 0 by cp.async if asked."""
    if copies_async:
        sch.annotate(loop, "software_pipeline_async_stages", [0])
    sch.annotate(loop, "software_pipeline_stage", stage)
    sch.annotate(loop, "software_pipeline_order", order)


def bind_warps(sch: Schedule, warp: Loop, lane: Loop) -> None:
    """One warp is one threadIdx.y: threadIdx.x is the lane."""
    sch.bind(warp, "threadIdx.y")
    sch.bind(lane, "threadIdx.x")


def deal(
    sch: Schedule,
    loops: Sequence[Loop],
    warps: int,
    vector: int = 1,
    outer: Sequence[Loop] = (),
) -> Loop:
    """Deal the iterations of adjacent `loops` to the threads of a block, neighbours to neighbours.

    Args:
        vector: this many neighbours stay with one thread, as one vector access.
        outer: loops around `loops` that every thread runs in full; unrolled.
    Returns:
        The unrolled loop over a thread's turns; ragged ends are predicated.
    """
    fused = sch.fuse(*loops)
    turn, warp, lane, *rest = sch.split(fused, [None, warps, WARP] + [vector] * (vector > 1))
    sch.reorder(warp, lane, *outer, turn, *rest)
    bind_warps(sch, warp, lane)
    unroll(sch, *outer, turn)
    if rest:
        sch.vectorize(rest[0])
    return turn


def interleave(sch: Schedule, order: str, **loops: Loop) -> list[Loop]:
    """Split `loops` into bits; one unit-or-two-trip loop a bit, in `order`, outermost first.

    Each loop's name is one letter, and `order` holds it log2(extent) times, e.g. "epkkp" with
    e of 2 iterations, p and k of 4. The caller reorders and fuses the result to a lane index.
    """
    bits: dict[str, list[Loop]] = {}
    unit: list[Loop] = []
    for name, loop in loops.items():
        count = order.count(name)
        if count == 0:
            unit.append(loop)
        else:
            bits[name] = list(sch.split(loop, [2] * count)) if count > 1 else [loop]
    return unit + [bits[name].pop(0) for name in order]


@stage
def initialise(sch: Schedule, sums: Block, loop: Loop) -> None:
    """The first values of `sums`, before `loop`, which is one of their sum's.

    loops: what of `sums` lies inside `loop` -> again before it; leaves none
    """
    sch.decompose_reduction(sums, loop)
