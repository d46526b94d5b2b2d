"""The one table of error limits: relative Frobenius error against float64, zero-mean data.

One rounding costs up to 2^-24 = 6e-8 in float32; sums of products that partly cancel let it grow
with the square root of the terms. F(4x4) multiplies by up to 8 and adds back, which costs about a
digit; F(2x2) about a factor of 2. 16-bit results carry their own last rounding (2^-11, 2^-8).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from ..shapes import ConvSpec

# (out dtype, algorithm) -> limit
TOLERANCES = {
    ("float32", "direct"): 1e-6,
    # one running sum of 4,608 products errs 1.1e-6: long sums are taken in parts
    ("float32", "im2win"): 1e-6,
    # the same; 9.0e-7 with 2,560 products, the most in one part
    ("float32", "gemm"): 1e-6,
    ("float32", "im2col"): 1e-6,
    ("float32", "winograd-f2"): 1e-6,
    ("float32", "winograd-f4"): 5e-6,
    ("float16", "direct"): 5e-4,
    ("float16", "gemm"): 5e-4,
    ("float16", "im2col"): 5e-4,
    ("float16", "winograd-f2"): 5e-4,
    ("float16", "winograd-f4"): 5e-4,
    ("bfloat16", "direct"): 4e-3,
    ("bfloat16", "gemm"): 4e-3,
    ("bfloat16", "im2col"): 4e-3,
    ("bfloat16", "winograd-f2"): 4e-3,
    ("bfloat16", "winograd-f4"): 4e-3,
    ("int32", "direct"): 0.0,  # integers are exact
    ("int32", "gemm"): 0.0,
    ("int32", "im2col"): 0.0,
}
# A network's error over that of a direct float32 evaluation of the same weights and input, where
# every layer is as exact as a direct one.
NETWORK_RATIO = 2.0
# What that evaluation is granted at least, two units of float32's rounding: over ten outputs of a
# small network it may err 1.0e-7 by luck and another order of the same sums 2.3e-7.
NETWORK_FLOOR = 2.0**-22
# A model's own framework in float32, times what the direct evaluation errs: it may sum in another
# order, or use Winograd. An operator that was imported wrongly errs by 1e-3 and more.
IMPORT_RATIO = 50.0


# Of one running sum in float32, which "direct" is, TOLERANCES holds for so many products; 4,608
# and 9,216 of them erred 1.2e-6 (H200).
_RUNNING_SUM = 2304


def tolerance(spec: ConvSpec, algorithm: str) -> float:
    """The limit for a convolution computed by `algorithm`."""
    limit = TOLERANCES[spec.out_dtype, algorithm]
    products = spec.c // spec.groups * spec.r * spec.s
    if algorithm == "direct" and spec.out_dtype == "float32" and products > _RUNNING_SUM:
        limit *= math.sqrt(products / _RUNNING_SUM)
    return limit


def network_ratio(layers: Iterable[tuple[ConvSpec, str]]) -> float:
    """The limit for a network of (convolution, algorithm): its least exact layer may dominate."""
    worst = (tolerance(spec, a) / (tolerance(spec, "direct") or 1.0) for spec, a in layers)
    return NETWORK_RATIO * max(worst, default=1.0)


def long_sums(layers: Iterable[tuple[ConvSpec, str]]) -> float:
    """What a network may err in any case: the widest limit among its long running sums, 0 without.

    The evaluation that a network is compared with adds up such a sum in parts and errs less: 3.1e-7
    where one of 8,712 products errs 1.4e-6. No network is more exact than its convolutions.
    """
    long = [
        tolerance(spec, algorithm)
        for spec, algorithm in layers
        if algorithm == "direct" and spec.c // spec.groups * spec.r * spec.s > _RUNNING_SUM
    ]
    return max(long, default=0.0)
