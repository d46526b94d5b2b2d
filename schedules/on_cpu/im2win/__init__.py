"""im2win on a CPU: windows of the input are made contiguous, then multiplied in registers.

No cost: the kernel has no estimate, and "auto" takes it from a tuning log only.

Constraints: float32, one group (te.im2win.applies); any filter, stride, dilation, padding, size and
layout. Vectors of filters divide K if there are two or more; at most 64 accumulators. A sum has at
most 1280 products, so C is split in equal parts. Indices are 32-bit.
"""

from .config import Im2winCpu
from .kernel import KERNEL

__all__ = ["KERNEL", "Im2winCpu"]
