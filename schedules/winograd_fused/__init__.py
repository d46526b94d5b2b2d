"""Winograd F(2x2) and F(4x4) on CUDA, transforms and products in one kernel.

Constraints: 3x3 filters, stride 1, dilation 1, one group (te.winograd.applies); float32 products of
float32, float16 or bfloat16 data, `held` patches of float32 only; NCHW, NHWC and CHWN, but `relaid`
outputs (stores < 4, compact) only for lanes along tiles, so not NHWC. Any size of map, C, K and N,
padded to whole tiles and steps. tk and tp are multiples of `fragment`; `lanes` are 5 bits that
share the (eps, nu), filters and tiles of a warp; all threads copy equal shares of a step's U. C in
parts: at most 64 / m^2, none empty. Architectures: sm_75 and newer for F(2x2), which copies U
through registers there; sm_80 and newer (cp.async) for F(4x4). Indices are 32-bit; U has at most
2^29 elements with cp.async.
"""

from .config import Fused, FusedF4
from .kernel import F4, KERNEL
from .named import NAMED

__all__ = ["F4", "KERNEL", "NAMED", "Fused", "FusedF4"]
