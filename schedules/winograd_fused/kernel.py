"""Winograd F(m x m, 3x3), m = 2 or 4, in one CUDA kernel, fp32 FMA: the openCNN scheme (Castro,
Andrade and Fraguela, Mathematics 2021, 9(17), 2033, algorithm 1).

A block computes `bk` filters x `bp` output tiles. Per step of `bc` channels it loads input
patches, transforms them into shared memory, copies the pre-transformed weights beside them and
multiplies; at the end the accumulators go through shared memory, in rounds, to the threads that
transform and store whole output tiles. A thread owns `tk` x `tp` accumulators of one (eps, nu), or
of `points` of them. NAMED["opencnn"] (named.py) is that paper's own choice of knobs.

    grid    (p block, k block)      threads  (lane, warp)
    U       shared  (bc, E, tk/4, bk/tk, 4)          two buffers with cp.async, else one
    V       shared  (bc, E, tp/4, bp/tp, 4)          one buffer, two barriers a step; E = (m + 2)^2
    M       registers, then shared, in rounds: output.py

While a step multiplies, the next step's patches are on their way to registers and its weights
on their way to shared memory (cp.async) or registers (sm_75). Where blocks are too few for the
GPU, C is split among blocks and a second kernel sums: split.py.
"""

from __future__ import annotations

from typing import Any, TypeVar

from tvm_winograd.gpu import Gpu
from tvm_winograd.ir import marks
from tvm_winograd.shapes import ConvSpec, Epilogue
from tvm_winograd.te import split as te_split
from tvm_winograd.te import winograd

from ..base import blocks, launch_bounds, mainloop_fma
from ..base.blocks import Block, Loop, Schedule
from ..base.kernel import Kernel
from ..base.stages import stage
from . import cost_f4, output, search_f4, split, transform
from .config import Fused, FusedF4, FusedTile
from .cost import seconds, workspace
from .legal import illegal, needs, supports
from .named import NAMED
from .search import configs, default, portable

__all__ = [
    "F4",
    "KERNEL",
    "NAMED",
    "Fused",
    "FusedF4",
    "FusedTile",
    "configs",
    "default",
    "illegal",
    "portable",
    "schedule",
]

C = TypeVar("C", bound=FusedTile)


def prim_func(spec: ConvSpec, epilogue: Epilogue, config: FusedTile) -> Any:
    """main(X, U[, B][, R], O), unscheduled."""
    if config.split_c > 1:
        func = te_split.prim_func(spec, epilogue, config.tiling, config.split_c)
    else:
        func = winograd.tiled_prim_func(spec, epilogue, config.tiling)
    return launch_bounds.require(func, "wino_Z", config.min_blocks)


def schedule(sch: Schedule, config: FusedTile, gpu: Gpu) -> None:
    """Schedule `prim_func(spec, epilogue, config)` in place."""
    layout = str(sch.get(sch.get_sblock("wino_O")).annotations["layout"])
    if config.split_c > 1:
        split.sum_parts(sch, gpu, layout)
        p_block, k_round, turn = split.bind_parts(sch, config)
        output.transform(sch, config, "tiles", k_round, turn)
    else:
        p_block, k_round, turn = output.bind(sch, config, layout)
        output.transform(sch, config, layout, k_round, turn)
    step, product = _main_loop(sch, config, p_block)
    weights = _stage_operands(sch, config, step, product)
    transform.input_transform(sch, config, layout, step)
    _copy_weights(sch, config, step, weights)
    blocks.initialise(sch, sch.get_sblock("wino_M"), step)
    _pipeline(sch, config, step, product)


@stage
def _main_loop(sch: Schedule, config: FusedTile, p_block: Loop) -> tuple[Loop, Loop]:
    """M in registers, an outer product a channel; returns (step, the loop that loads operands).

    loops: the p block gets e k1 k0 k2 p1 p0 p2 c of M; leaves (step, channel or a thread's e)
    """
    block = sch.get_sblock("wino_M")
    sch.set_scope(block, 0, "local")
    e, *part, kb, k1, k0, k2, pb, p1, p0, p2, c = blocks.move(sch, block, p_block)
    step, group, channel = sch.split(c, [None, config.bc // config.unroll, config.unroll])
    tile = [*part, kb, pb, k1, p1, k2, p2]
    e = output.own(sch, config, e, k0, p0, [step, group, channel, *tile])
    sch.reorder(step, group, channel, e)
    blocks.unroll(sch, channel, e, *tile)
    return step, e if config.by_point else channel


@stage
def _stage_operands(sch: Schedule, config: FusedTile, step: Loop, product: Loop) -> list[Block]:
    """Fragments to registers, U and V to shared memory; returns U's copies, last first.

    loops: product gets the fragments, vectors innermost; leaves none
    """
    m = sch.get_sblock("wino_M")
    of_u, _ = mainloop_fma.fragments(sch, m, product)
    shared = sch.cache_read(of_u, 0, "shared.dyn")
    sch.set_scope(sch.get_sblock("wino_V"), 0, "shared.dyn")
    if config.weights == "async":
        return [shared]
    return [shared, sch.cache_read(shared, 0, "local")]


@stage
def _copy_weights(sch: Schedule, config: FusedTile, step: Loop, weights: list[Block]) -> None:
    """U to shared memory, by cp.async or behind a copy in registers.

    loops: step gets the copies, `copy` words each, dealt to threads; leaves none
    """
    for block in weights:
        turn = blocks.deal(sch, blocks.move(sch, block, step), config.warps, vector=config.copy)
        if config.near:
            sch.annotate(turn, marks.NEAR, 1)


@stage
def _pipeline(sch: Schedule, config: FusedTile, step: Loop, product: Loop) -> None:
    """Overlap step i + 1's global loads with step i's arithmetic.

    The statements of a step are: load patches, transform them, copy U (two copies if through
    registers), multiply. Patches are transformed (their loads were a step ago), then loaded anew.
    A product's (of a channel, or a channel's point) are: load U's fragment, V's, multiply.

    loops: step and product get their software pipelines; leaves none
    """
    if config.fragments > 1:
        blocks.pipeline(sch, product, [0, 0, 1], [0, 1, 2])
    multiply = config.buffers  # the stage: one later, and operands are written ahead
    if config.weights == "async":
        late = config.stages - 2
        stages = [late, late + 1, 0, late + multiply]
        blocks.pipeline(sch, step, stages, [1, 0, 2, 3], copies_async=True)
    elif config.prefetch != "off":
        order = [2, 0, 3, 1, 4] if config.prefetch == "before" else [3, 0, 4, 1, 2]
        blocks.pipeline(sch, step, [0, 1, 0, 1, multiply], order)


def _kernel(config: type[C], **fields: Any) -> Kernel[C]:
    return Kernel(
        target="cuda",
        config=config,
        own_supports=supports,
        own_illegal=illegal,
        needs=needs,
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
    trial=lambda spec, gpu: [portable(spec)],
    configs=configs,
    seconds=seconds,
)
F4 = _kernel(
    FusedF4,
    name="winograd-f4-fused",
    algorithm="winograd-f4",
    trial=lambda spec, gpu: search_f4.TILES,
    configs=search_f4.configs,
    seconds=cost_f4.seconds,
)
