"""How a step's operands get to the product: A copied, B gathered from X or copied behind im2col."""

from __future__ import annotations

from ..base import blocks, mainloop_fma
from ..base.blocks import Block, Loop, Schedule
from ..base.stages import stage
from .config import ROW_PAD, Product

_PATCH_WARPS = 8  # of a block of the im2col kernel
_PATCH_STEPS = 2  # steps of the GEMM whose products it gathers


@stage
def to_shared(sch: Schedule, config: Product, layout: str, step: Loop, product: Loop) -> None:
    """A and B to shared memory ahead of their use, and their fragments to registers.

    loops: step gets the copies of A and B, pipelined; product gets the fragments; leaves none
    """
    m, x, b = (sch.get_sblock(name) for name in ("gemm_M", "gemm_X", "gemm_B"))
    of_a, of_b = mainloop_fma.fragments(sch, m, product)
    if config.inputs == "workspace":
        sch.compute_inline(x)
        _im2col(sch, config, layout, b)
        _copy_packed(sch, config, of_b, step)
    else:
        _gather(sch, config, layout, step)
    _copy_packed(sch, config, of_a, step)
    _pipeline(sch, config, step)


def _copy_packed(sch: Schedule, config: Product, fragment: Block, step: Loop) -> None:
    """A step of an operand that lies in device memory tile by tile, 16 bytes a copy."""
    copy = sch.cache_read(fragment, 0, "shared.dyn")
    copies = [copy]
    if config.weights == "registers":
        copies.append(sch.cache_read(copy, 0, "local"))
    for block in copies:
        blocks.deal(sch, blocks.move(sch, block, step), config.warps, vector=4)


def _gather(sch: Schedule, config: Product, layout: str, step: Loop) -> None:
    """A step of B from X, on the way held in registers or not."""
    x, b = (sch.get_sblock(name) for name in ("gemm_X", "gemm_B"))
    sch.set_scope(b, 0, "shared.dyn")
    if config.inputs != "registers":
        sch.compute_inline(x)
    _deal_pixels(sch, config, layout, blocks.move(sch, b, step), config.warps)
    if layout == "NHWC":
        sch.storage_align(b, 0, 2, 32, ROW_PAD)
    if config.inputs == "registers":
        _deal_pixels(sch, config, layout, blocks.move(sch, x, step), config.warps)
        sch.set_scope(x, 0, "local")


def _deal_pixels(
    sch: Schedule, config: Product, layout: str, loops: list[Loop], warps: int
) -> None:
    """(q, pixel) pairs to threads, lanes along what is contiguous in the input's memory.

    NHWC: lanes along products (channels) of 4 pixels, whose rows in shared memory lie ROW_PAD
    words past a whole number of banks: no two lanes write to one bank.
    """
    *outer, q, p1, p0, p2 = loops
    if config.inputs == "async16":
        sch.reorder(*outer, q, p1, p0, p2)
        blocks.deal(sch, [*outer, q, p1, p0, p2], warps, vector=4)
        return
    if layout == "NHWC":
        order = [p1, p0, q, p2]
    else:
        order = [q, p1, p0, p2] if config.store == "pixels" else [q, p1, p2, p0]
    sch.reorder(*outer, *order)
    blocks.deal(sch, [*outer, *order], warps)


def _im2col(sch: Schedule, config: Product, layout: str, b: Block) -> None:
    """B in device memory by a kernel of its own."""
    g, pb, q, p1, p0, p2 = sch.get_loops(b)
    q_block, q = sch.split(q, [None, _PATCH_STEPS * config.bc])
    sch.reorder(g, pb, q_block, q, p1, p0, p2)
    sch.bind(sch.fuse(g, pb, q_block), "blockIdx.x")
    _deal_pixels(sch, config, layout, [q, p1, p0, p2], _PATCH_WARPS)


def _pipeline(sch: Schedule, config: Product, step: Loop) -> None:
    """Overlap the global loads of later steps with a step's arithmetic.

    The statements of a step are: copy B (from registers if it is held there, two statements),
    copy A (likewise), multiply.
    """
    if config.weights == "registers":
        stages, order = [0, 1, 0, 1, 1], [2, 0, 3, 1, 4]
    elif config.inputs == "registers":
        stages, order = [0, 1, 0, 1], [1, 0, 2, 3]
    else:
        stages, order = [0, 0, config.buffers - 1], [0, 1, 2]
    blocks.pipeline(sch, step, stages, order, copies_async=config.weights == "async")
