"""im2win on CUDA: windows of the input are made contiguous, then multiplied.

Constraints: float32, one group (te.im2win.applies); any filter, stride, dilation, padding, size and
layout. tk divides bk and is less than 4 or a multiple of it, th divides bh and tw bw; `lanes` are 5
bits that share filters, rows and columns. `flat` windows need stride * C * R to be a multiple of 4
and no dilation. C is padded to a multiple of bc * parts. Architectures: sm_75 and newer; cp.async
from sm_80 on. Indices are 32-bit; windows and weights have at most 2^29 elements with cp.async.
"auto" takes it in NCHW only: elsewhere its times are not measured.
"""

from .config import Im2win
from .kernel import KERNEL

__all__ = ["KERNEL", "Im2win"]
