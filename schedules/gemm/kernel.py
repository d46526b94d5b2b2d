"""Convolution as a matrix product on CUDA: implicit GEMM, and im2col + GEMM, FMA.

    im2col          X -> B, a workspace     with im2col only
    GEMM            A, X (or B) -> O        a group's bk filters x bp pixels a block
    sum             parts of M -> O         with parts > 1 only (split.py)

    A       global  (G, Kb, Q, tk/4, bk/tk, 4)      shared  (bc, tk/4, bk/tk, 4) a step
    B       global  (G, Pb, Q, tp/4, bp/tp, 4)      shared  (bc, tp/4, bp/tp, 4) a step

Implicit GEMM gathers a step of B from X into shared memory. A thread gathers the same pixel (or
vector of them) in all of its turns and all steps: what depends on the pixel is computed once.
"""

from __future__ import annotations

from typing import Any, TypeVar

from tvm_winograd.gpu import Gpu
from tvm_winograd.shapes import ConvSpec, Epilogue
from tvm_winograd.te import gemm

from ..base import blocks, mainloop_fma
from ..base.blocks import Block, Schedule
from ..base.kernel import Kernel
from ..base.mainloop_fma import BlockTile
from ..base.stages import stage
from . import operands
from .config import Im2col, Implicit, Product
from .cost import least, least_of_im2col, seconds, workspace
from .legal import copies_nothing_new, illegal, needs, supports
from .search import configs, default, im2col_configs, im2col_trial, not_worth_im2col, portable
from .split import sum_parts

__all__ = [
    "IM2COL", "KERNEL", "Im2col", "Implicit", "configs", "default", "illegal", "portable",
    "schedule",
]  # fmt: skip

C = TypeVar("C", bound=Product)


def prim_func(spec: ConvSpec, epilogue: Epilogue, config: Product) -> Any:
    """main(X, A[, B][, R], O), unscheduled."""
    return gemm.prim_func(spec, epilogue, config.tiling)


def schedule(sch: Schedule, config: Product, gpu: Gpu) -> None:
    """Schedule `prim_func(spec, epilogue, config)` in place."""
    out, m = sch.get_sblock("gemm_O"), sch.get_sblock("gemm_M")
    layout = str(sch.get(out).annotations["layout"])
    if config.parts > 1:
        sum_parts(sch, config, gpu, layout)
        store = sch.cache_write(m, 0, "local")
    else:
        store = out
        sch.set_scope(m, 0, "local")
    tile = _grid(sch, config, store)
    # What is contiguous in memory innermost; in the workspace of parts that is p2.
    by_filters = config.store == "filters" and config.parts == 1
    k, p = [tile.k1, tile.k2], [tile.p1, tile.p2]
    vector = config.store != "words" or config.parts > 1
    own = p + k if by_filters else k + p
    step, product = mainloop_fma.main_loop(sch, config, m, tile, own, vector)
    operands.to_shared(sch, config, layout, step, product)
    blocks.initialise(sch, m, step)


@stage
def _grid(sch: Schedule, config: Product, store: Block) -> BlockTile:
    """bk filters x bp pixels of a group and part a block.

    loops: [part] g kb k1 k0 k2 pb p1 p0 p2 of the store -> grid (pb kb, part g); leaves the others
    """
    *outer, kb, k1, k0, k2, pb, p1, p0, p2 = sch.get_loops(store)
    sch.reorder(*outer, pb, kb, k0, p0, k1, k2, p1, p2)
    # Blocks of the same pixels follow each other: all but the first find them in L2.
    sch.bind(sch.fuse(pb, kb), "blockIdx.x")
    sch.bind(sch.fuse(*outer), "blockIdx.y")
    return BlockTile(k1, k0, k2, p1, p0, p2)


def _kernel(config: type[C], **fields: Any) -> Kernel[C]:
    return Kernel(
        target="cuda",
        config=config,
        own_illegal=illegal,
        needs=needs,
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
    own_supports=supports,
    least=least,
    trial=lambda spec, gpu: [portable(spec)],
    configs=configs,
)


def supports_im2col(spec: ConvSpec, epilogue: Epilogue, gpu: Gpu) -> str | None:
    """None, or why im2col + GEMM, which is implicit GEMM behind a kernel, cannot compute `spec`."""
    return KERNEL.supports(spec, epilogue, gpu) or copies_nothing_new(spec)


IM2COL = _kernel(
    Im2col,
    name="im2col-gemm",
    algorithm="im2col",
    own_supports=supports_im2col,
    least=least_of_im2col,
    trial=im2col_trial,
    configs=im2col_configs,
    not_worth=not_worth_im2col,
)
