"""Direct convolution on CUDA, scheduled by TVM's dlight: what no kernel of ours takes.

No legal, search, cost or stages: dlight has no knobs, and a choice of it has no estimate.

Constraints: any filter, stride, dilation, padding, groups, dtype and layout; indices are 32-bit.
"""

from .config import Dlight
from .kernel import KERNEL

__all__ = ["KERNEL", "Dlight"]
