"""Winograd F(2x2) on a CPU: the input transform, then products and output transform in registers.

No cost: the kernel has no estimate; the selector takes it first where there are 8 channels.

Constraints: 3x3 filters, stride 1, dilation 1, one group (te.winograd.applies); float32 products of
float32, float16 or bfloat16 data; every layout and size. Vectors of filters divide K if there are
two or more; at most 64 accumulators. Indices are 32-bit.
"""

from .config import WinogradCpuConfig
from .kernel import KERNEL

__all__ = ["KERNEL", "WinogradCpuConfig"]
