"""Convolution as a matrix product on CUDA: implicit GEMM, and im2col + GEMM, FMA.

    im2col          X -> B, a workspace     with im2col only
    GEMM            A, X (or B) -> O        a group's bk filters x bp pixels a block
    sum             parts of M -> O         with parts > 1 only (implicit_gemm_split.py)

    A       global  (G, Kb, Q, tk/4, bk/tk, 4)      shared  (bc, tk/4, bk/tk, 4) a step
    B       global  (G, Pb, Q, tp/4, bp/tp, 4)      shared  (bc, tp/4, bp/tp, 4) a step

Implicit GEMM gathers a step of B from X into shared memory. A thread gathers the same pixel (or
vector of them) in all of its turns and all steps: what depends on the pixel is computed once.
"""

from __future__ import annotations

from typing import Any

from tvm_winograd.gpu import Gpu, Hardware
from tvm_winograd.shapes import ConvSpec, Epilogue
from tvm_winograd.te import gemm

from ..base import blocks
from ..base.blocks import Block, Loop, Schedule
from ..base.kernel import Kernel
from .config import ROW_PAD, Im2col, Implicit, Product, illegal
from .search import configs, default, im2col_configs, not_worth_im2col, portable, seconds, workspace
from .split import sum_parts

__all__ = [
    "IM2COL", "KERNEL", "Im2col", "Implicit", "configs", "default", "illegal", "portable",
    "schedule", "supports",
]  # fmt: skip

_PATCH_WARPS = 8  # of a block of the im2col kernel
_PATCH_STEPS = 2  # steps of the GEMM whose products it gathers


def supports(spec: ConvSpec, epilogue: Epilogue, hw: Hardware) -> str | None:
    """None, or why implicit GEMM cannot compute `spec` on `hw`."""
    if hw.kind != "cuda":
        return f"a CUDA kernel, got a {hw.kind} target"
    if reason := gemm.applies(spec):
        return reason
    if (least := min(spec.k, spec.c) // spec.groups) < 4 and spec.groups > 1:
        return f"a group of {least} filters or channels leaves most of a tile empty; 4 are needed"
    return illegal(portable(spec), spec, hw)


def supports_im2col(spec: ConvSpec, epilogue: Epilogue, hw: Hardware) -> str | None:
    """None, or why im2col + GEMM cannot compute `spec` on `hw`, or need not."""
    if reason := supports(spec, epilogue, hw):
        return reason
    if (spec.r, spec.s, spec.stride, max(spec.padding)) == (1, 1, 1, 0):
        return "im2col would copy the input of a 1x1 convolution as it is: use gemm"
    legal = im2col_configs(spec, hw)
    return None if legal else "the workspace of im2col has 2^31 elements or more"


def prim_func(spec: ConvSpec, epilogue: Epilogue, config: Product) -> Any:
    """main(X, A[, B][, R], O), unscheduled."""
    return gemm.prim_func(spec, epilogue, config.tiling)


def schedule(sch: Schedule, config: Product, gpu: Gpu) -> None:
    """Schedule `prim_func(spec, epilogue, config)` in place."""
    out = sch.get_sblock("gemm_O")
    layout = str(sch.get(out).annotations["layout"])
    if config.parts > 1:
        sum_parts(sch, config, gpu, layout)
        store = sch.cache_write(sch.get_sblock("gemm_M"), 0, "local")
    else:
        store = out
        sch.set_scope(sch.get_sblock("gemm_M"), 0, "local")
    step, product = _gemm_tile(sch, config, store)
    _stage_operands(sch, config, layout, step, product)
    sch.decompose_reduction(sch.get_sblock("gemm_M"), step)


def _gemm_tile(sch: Schedule, config: Product, store: Block) -> tuple[Loop, Loop]:
    """M in registers, an outer product a q; returns the loops (step, product in step)."""
    *outer, kb, k1, k0, k2, pb, p1, p0, p2 = sch.get_loops(store)
    count = {letter: 2 ** config.lanes.count(letter) for letter in "kp"}
    k_warp, k0 = sch.split(k0, [None, count["k"]])
    p_warp, p0 = sch.split(p0, [None, count["p"]])
    bits = blocks.interleave(sch, config.lanes, k=k0, p=p0)
    sch.reorder(*outer, pb, kb, k_warp, p_warp, *bits, *_store_order(config, k1, k2, p1, p2))
    # Blocks of the same pixels follow each other: all but the first find them in L2.
    sch.bind(sch.fuse(pb, kb), "blockIdx.x")
    sch.bind(sch.fuse(*outer), "blockIdx.y")
    lane = sch.fuse(*bits)
    blocks.bind_warps(sch, sch.fuse(k_warp, p_warp), lane)
    *around, vector = _store_order(config, k1, k2, p1, p2)
    blocks.unroll(sch, *around)
    (sch.unroll if config.store == "words" and config.parts == 1 else sch.vectorize)(vector)
    *outer, k1, k0, k2, pb, p1, p0, p2, q = blocks.move(sch, sch.get_sblock("gemm_M"), lane)
    step, product = sch.split(q, [None, config.bc])
    tile = [*outer, k0, pb, p0, k1, p1, k2, p2]
    sch.reorder(step, product, *tile)
    blocks.unroll(sch, product, *tile)
    return step, product


def _store_order(config: Product, k1: Loop, k2: Loop, p1: Loop, p2: Loop) -> list[Loop]:
    """A thread's outputs, what is contiguous in memory innermost (the workspace of parts: p2)."""
    if config.store == "filters" and config.parts == 1:
        return [p1, p2, k1, k2]
    return [k1, k2, p1, p2]


def _stage_operands(sch: Schedule, config: Product, layout: str, step: Loop, product: Loop) -> None:
    """A and B to shared memory ahead of their use, and their fragments to registers."""
    m, x, b = (sch.get_sblock(name) for name in ("gemm_M", "gemm_X", "gemm_B"))
    fragments = [sch.cache_read(m, i, "local") for i in (0, 1)]
    for fragment in fragments:
        *outer, vector = blocks.move(sch, fragment, product)
        blocks.unroll(sch, *outer)
        sch.vectorize(vector)
    if config.inputs == "workspace":
        sch.compute_inline(x)
        _im2col(sch, config, layout, b)
        _copy_packed(sch, config, fragments[1], step)
    else:
        _gather(sch, config, layout, step)
    _copy_packed(sch, config, fragments[0], step)
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
        stage, order = [0, 1, 0, 1, 1], [2, 0, 3, 1, 4]
    elif config.inputs == "registers":
        stage, order = [0, 1, 0, 1], [1, 0, 2, 3]
    else:
        stage, order = [0, 0, config.buffers - 1], [0, 1, 2]
    blocks.pipeline(sch, step, stage, order, copies_async=config.weights == "async")


def _kernel(config: type, **fields: Any) -> Kernel:
    return Kernel(
        target="cuda",
        config=config,
        illegal=illegal,
        prim_func=prim_func,
        schedule=schedule,
        pack_weights=lambda w, spec, config: gemm.pack_weights(w, spec, config.tiling),
        weight_func=lambda spec, config: gemm.weight_func(spec, config.tiling),
        pass_config=blocks.ASYNC_COPY,
        seconds=seconds,
        workspace=workspace,
        **fields,
    )


KERNEL = _kernel(
    Implicit,
    name="implicit-gemm",
    algorithm="gemm",
    supports=supports,
    configs=configs,
)
IM2COL = _kernel(
    Im2col,
    name="im2col-gemm",
    algorithm="im2col",
    supports=supports_im2col,
    configs=im2col_configs,
    not_worth=not_worth_im2col,
)
