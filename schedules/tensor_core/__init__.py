"""Convolution on tensor cores with the accuracy of float32 (fp16x3): see wgmma.cuh."""

from tvm_winograd.schedules.kernel import Kernel

from . import cost, kernel, legal, pack, search, sizes
from .config import TensorCore

__all__ = ["KERNEL", "TensorCore"]

KERNEL = Kernel(
    name="tensor-core-gemm",
    algorithm="gemm",
    target="cuda",
    config=TensorCore,
    supports=legal.supports,
    illegal=legal.illegal,
    configs=search.configs,
    prim_func=kernel.prim_func,
    schedule=lambda sch, config, gpu: None,  # the function is ready
    pack_weights=pack.pack_weights,
    weight_func=kernel.weight_func,
    seconds=cost.seconds,
    workspace=sizes.workspace_bytes,
)
