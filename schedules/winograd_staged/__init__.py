"""Winograd F(4x4) on CUDA in three kernels: input transform, batched product, output transform.

Constraints: 3x3 filters, stride 1, dilation 1, one group (te.winograd.applies); float32 products of
float32, float16 or bfloat16 data; NCHW, NHWC and CHWN; any size of map, C, K and N, padded to whole
tiles. A config has tk and tp in multiples of 4, warps of 32 (k, p) pairs by `lanes`, steps whose
bc * bk and bc * bp words all GEMM threads copy 4 at a time. Architectures: sm_75 and newer; from
sm_80 on operands reach shared memory by cp.async, before that through registers. Indices are
32-bit; U and V have at most 2^29 elements (V of a chunk) with cp.async.
"""

from .config import Staged
from .kernel import KERNEL

__all__ = ["KERNEL", "Staged"]
