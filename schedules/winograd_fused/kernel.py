"""Winograd F(m x m, 3x3), m = 2 or 4, in one CUDA kernel, fp32 FMA: the openCNN scheme (Castro,
Andrade and Fraguela, Mathematics 2021, 9(17), 2033, algorithm 1).

A block computes `bk` filters x `bp` output tiles. Per step of `bc` channels it loads input
patches, transforms them into shared memory, copies the pre-transformed weights beside them and
multiplies; at the end the accumulators go through shared memory, in rounds, to the threads that
transform and store whole output tiles. A thread owns `tk` x `tp` accumulators of one (eps, nu), or
of `points` of them. NAMED["opencnn"] (winograd_fused_named.py) is that paper's own choice of knobs.

    grid    (p block, k block)      threads  (lane, warp)
    U       shared  (bc, E, tk/4, bk/tk, 4)          two buffers with cp.async, else one
    V       shared  (bc, E, tp/4, bp/tp, 4)          one buffer, two barriers a step; E = (m + 2)^2
    M       registers, then shared, in rounds: winograd_fused_output.py

While a step multiplies, the next step's patches are on their way to registers and its weights
on their way to shared memory (cp.async) or registers (sm_75). Where blocks are too few for the
GPU, C is split among blocks and a second kernel sums: winograd_fused_split.py.
"""

from __future__ import annotations

from typing import Any

from tvm_winograd.gpu import Gpu, Hardware
from tvm_winograd.ir import marks
from tvm_winograd.shapes import ConvSpec, Epilogue
from tvm_winograd.te import split, winograd

from ..base import blocks, launch_bounds
from ..base.blocks import Block, Loop, Schedule
from ..base.kernel import Kernel
from ..base.register_tile import next_power
from . import output
from . import search_f4 as winograd_fused_f4
from . import split as winograd_fused_split
from .config import V_PAD, Fused, FusedF4, FusedTile
from .legal import illegal
from .named import NAMED
from .search import configs, default, portable, seconds, workspace

__all__ = [
    "F4",
    "KERNEL",
    "NAMED",
    "Fused",
    "FusedF4",
    "configs",
    "default",
    "illegal",
    "portable",
    "schedule",
    "supports",
]


def supports(spec: ConvSpec, epilogue: Epilogue, hw: Hardware) -> str | None:
    """None, or why the fused F(2x2) cannot compute `spec` on `hw`."""
    return winograd.applies(spec) or illegal(portable(spec), spec, hw)


def supports_f4(spec: ConvSpec, epilogue: Epilogue, hw: Hardware) -> str | None:
    """None, or why the fused F(4x4) cannot compute `spec` on `hw`."""
    if reason := winograd.applies(spec):
        return reason
    reasons = [illegal(tile, spec, hw) for tile in winograd_fused_f4.TILES]
    return None if None in reasons else reasons[-1]


def prim_func(spec: ConvSpec, epilogue: Epilogue, config: FusedTile) -> Any:
    """main(X, U[, B][, R], O), unscheduled."""
    if config.split_c > 1:
        func = split.prim_func(spec, epilogue, config.tiling, config.split_c)
    else:
        func = winograd.tiled_prim_func(spec, epilogue, config.tiling)
    return launch_bounds.require(func, "wino_Z", config.min_blocks)


def schedule(sch: Schedule, config: FusedTile, gpu: Gpu) -> None:
    """Schedule `prim_func(spec, epilogue, config)` in place."""
    layout = str(sch.get(sch.get_sblock("wino_O")).annotations["layout"])
    if config.split_c > 1:
        winograd_fused_split.sum_parts(sch, gpu, layout)
        p_block, k_round, turn = winograd_fused_split.bind_parts(sch, config)
        output.transform(sch, config, "tiles", k_round, turn)
    else:
        p_block, k_round, turn = output.bind(sch, config, layout)
        output.transform(sch, config, layout, k_round, turn)
    step, product = _gemm_tile(sch, config, p_block)
    weights = _stage_operands(sch, config, step, product)
    _input_transform(sch, config, layout, step)
    for block in weights:
        turn = blocks.deal(sch, blocks.move(sch, block, step), config.warps, vector=config.copy)
        if config.near:
            sch.annotate(turn, marks.NEAR, 1)
    sch.decompose_reduction(sch.get_sblock("wino_M"), step)
    _pipeline(sch, config, step, product)


def _gemm_tile(sch: Schedule, config: FusedTile, p_block: Loop) -> tuple[Loop, Loop]:
    """M in registers, an outer product a channel; returns (step, the loop that loads operands)."""
    block = sch.get_sblock("wino_M")
    sch.set_scope(block, 0, "local")
    e, *part, kb, k1, k0, k2, pb, p1, p0, p2, c = blocks.move(sch, block, p_block)
    step, group, channel = sch.split(c, [None, config.bc // config.unroll, config.unroll])
    tile = [*part, kb, pb, k1, p1, k2, p2]
    e = output.own(sch, config, e, k0, p0, [step, group, channel, *tile])
    sch.reorder(step, group, channel, e)
    blocks.unroll(sch, channel, e, *tile)
    return step, e if config.by_point else channel


def _stage_operands(sch: Schedule, config: FusedTile, step: Loop, product: Loop) -> list[Block]:
    """Fragments to registers, U and V to shared memory; returns U's copies, last first."""
    m = sch.get_sblock("wino_M")
    fragments = [sch.cache_read(m, i, "local") for i in (0, 1)]
    shared = sch.cache_read(fragments[0], 0, "shared.dyn")
    sch.set_scope(sch.get_sblock("wino_V"), 0, "shared.dyn")
    for fragment in fragments:
        *outer, vector = blocks.move(sch, fragment, product)
        blocks.unroll(sch, *outer)
        sch.vectorize(vector)
    if config.weights == "async":
        return [shared]
    return [shared, sch.cache_read(shared, 0, "local")]


def _input_transform(sch: Schedule, config: FusedTile, layout: str, step: Loop) -> None:
    """V = B^T d B: a thread a patch; patches are loaded apart, to be fetched a step ahead.

    Where not every thread has one, TVM does not see it behind the deal: there B^T d would be
    computed by all threads and patches of later steps be loaded. So B^T d is written into V's
    block (nvcc computes each of its elements once), and patches are moved before V is dealt.
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


def _pipeline(sch: Schedule, config: FusedTile, step: Loop, product: Loop) -> None:
    """Overlap step i + 1's global loads with step i's arithmetic.

    The statements of a step are: load patches, transform them, copy U (two copies if through
    registers), multiply. Patches are transformed (their loads were a step ago), then loaded anew.
    A product's (of a channel, or a channel's point) are: load U's fragment, V's, multiply.
    """
    if config.fragments > 1:
        blocks.pipeline(sch, product, [0, 0, 1], [0, 1, 2])
    multiply = config.buffers  # the stage: one later, and operands are written ahead
    if config.weights == "async":
        late = config.stages - 2
        stage = [late, late + 1, 0, late + multiply]
        blocks.pipeline(sch, step, stage, [1, 0, 2, 3], copies_async=True)
    elif config.prefetch != "off":
        order = [2, 0, 3, 1, 4] if config.prefetch == "before" else [3, 0, 4, 1, 2]
        blocks.pipeline(sch, step, [0, 1, 0, 1, multiply], order)


def _kernel(config: type, **fields: Any) -> Kernel:
    return Kernel(
        target="cuda",
        config=config,
        illegal=illegal,
        prim_func=prim_func,
        schedule=schedule,
        pack_weights=lambda w, spec, config: winograd.pack_weights(w, spec, config.tiling),
        weight_func=lambda spec, config: winograd.weight_func(spec, config.tiling),
        pass_config=blocks.ASYNC_COPY,
        workspace=workspace,
        **fields,
    )


KERNEL = _kernel(
    Fused,
    name="winograd-f2-fused",
    algorithm="winograd-f2",
    supports=supports,
    configs=configs,
    seconds=seconds,
)
F4 = _kernel(
    FusedF4,
    name="winograd-f4-fused",
    algorithm="winograd-f4",
    supports=supports_f4,
    configs=winograd_fused_f4.configs,
    seconds=winograd_fused_f4.seconds,
)
