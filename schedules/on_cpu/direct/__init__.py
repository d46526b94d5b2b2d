"""Direct convolution on a CPU: the kernel for every convolution that no other takes.

No cost: the kernel has no estimate, the selector takes the first that applies.

Constraints: any filter, stride, dilation, padding, groups, dtype and layout. k_tile (lanes *
k_vectors) divides a group's filters where there are groups; `depthwise` has vectors along the row,
a channel's padded map in cache and a w_tile of whole vectors; `flat` needs 1x1, stride 1 and no
padding. At most 64 accumulators. Indices are 32-bit.
"""

from .config import DirectCpuConfig
from .kernel import KERNEL

__all__ = ["KERNEL", "DirectCpuConfig"]
