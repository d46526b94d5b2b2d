"""Parts of the reduction: the kernel that sums them, behind the product's.

    kernel 1   grid (p and k block, group and part)    M of a part -> workspace
    kernel 2   a thread 4 pixels of a filter           sum over the parts, epilogue, store

The workspace (parts, G, K, P) is tile-shaped like M and a buffer of the function: TVM takes it
from the device's workspace pool on the host, once a call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvm_winograd.gpu import Gpu

from ..base import blocks
from ..base.blocks import Schedule
from ..base.stages import stage

if TYPE_CHECKING:
    from .config import Product

_SUM_WARPS = 4  # of a block, fewer if that gives every SM a block


@stage
def sum_parts(sch: Schedule, config: Product, gpu: Gpu, layout: str) -> None:
    """The parts of 4 accumulators to registers, all loads in flight, their sum, the output.

    loops: g kb k1 k0 k2 pb p1 p0 p2 of O -> blockIdx.x, a thread's turn, vector p2; leaves none
    """
    out, total = sch.get_sblock("gemm_O"), sch.get_sblock("gemm_S")
    g, kb, k1, k0, k2, pb, p1, p0, p2 = sch.get_loops(out)
    filters, pixels = [g, kb, k1, k0, k2], [pb, p1, p0]
    # Lanes along what is contiguous in the output, by whole loops: with lanes from both sides TVM
    # loses track of which vectors a thread has.
    loops = pixels + filters if layout == "NHWC" else filters + pixels
    sch.reorder(*loops, p2)
    fused = sch.fuse(*loops)
    vectors, warps = blocks.extent(sch, fused), _SUM_WARPS
    while warps > 1 and vectors < warps * blocks.WARP * gpu.sms:
        warps //= 2
    block, rest = sch.split(fused, [None, warps * blocks.WARP])
    sch.bind(block, "blockIdx.x")
    turn = blocks.deal(sch, [rest], warps)
    (sch.vectorize if config.store == "pixels" else sch.unroll)(p2)
    parts = sch.cache_read(total, 0, "local")
    loops = blocks.move(sch, total, turn)
    sch.set_scope(total, 0, "local")
    blocks.unroll(sch, *loops)
    *loops, vector = blocks.move(sch, parts, turn)
    blocks.unroll(sch, *loops)
    sch.vectorize(vector)
