"""Convolution as a matrix product on CUDA: implicit GEMM, and im2col with a workspace.

Constraints: any filter, stride, dilation, padding and layout; groups of 4 filters and channels or
more. Operands are float32, or int32 of integer data; other data than float32 is converted on its
way through registers (`inputs="registers"`), since cp.async cannot. tk and tp are multiples of 4;
16-byte copies and stores need 4 neighbouring pixels in memory (N a multiple of 4 in CHWN, whole
maps a multiple of 4 in NCHW) or, in NHWC, a multiple of 4 filters a group. A float32 sum has at
most 2560 products, so longer reductions are split in at most 16 parts. Architectures: sm_75 and
newer; cp.async from sm_80 on. Indices are 32-bit, and cp.async reaches 2^29 elements.
"""

from .config import Im2col, Implicit
from .kernel import IM2COL, KERNEL

__all__ = ["IM2COL", "KERNEL", "Im2col", "Implicit"]
