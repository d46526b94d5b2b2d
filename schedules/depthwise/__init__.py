"""Depthwise and thinly grouped convolution on CUDA, bound by memory.

Constraints: groups > 1, a sum of at most 2560 products; any filter, stride, dilation, padding,
dtype and layout. tk divides a group's filters; a thread has 2 outputs or more, its patch at most 72
input elements (`patch`), its straight line at most 1024 multiply-adds. `channels` (maps through
shared memory, at most 48 KB a block) needs NCHW, one filter a channel and a divisor of C.
Architectures: sm_75 and newer; no cp.async, no workspace. Indices are 32-bit.
"""

from .config import Depthwise
from .kernel import KERNEL

__all__ = ["KERNEL", "Depthwise"]
