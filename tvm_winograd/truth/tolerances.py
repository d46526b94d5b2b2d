"""The one table of error limits: relative Frobenius error against float64, zero-mean data.

One rounding costs up to 2^-24 = 6e-8 in float32; sums of products that partly cancel let it grow
with the square root of the terms. F(4x4) multiplies by up to 8 and adds back, which costs about a
digit; F(2x2) about a factor of 2. 16-bit results carry their own last rounding (2^-11, 2^-8).
A limit belongs to an arithmetic (precision.py): what split float16 or TF32 may err, FMA may not.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import sqrt

from .. import precision
from ..errors import UnsupportedError
from ..shapes import ConvSpec

# (out dtype, algorithm) -> limit of fma, of int8 where integers come out
_PLAIN = {
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
# The same where the main loop runs on tensor cores in float32 accuracy: sums of 64 products leave
# the tensor core, which truncates; 1.9e-7 to 3.0e-7 for 64 to 4,608 products (H200).
_SPLIT = dict.fromkeys(("direct", "im2win", "gemm", "im2col", "winograd-f2"), 6e-7)
# Factors of 11 bits: 5e-4 when rounded, 8.7e-4 when truncated, as tensor cores do (H200).
_TF32 = dict.fromkeys(("direct", "im2win", "gemm", "im2col", "winograd-f2"), 1e-3)

# (out dtype, algorithm, arithmetic) -> limit
TOLERANCES = {
    **{(out, name, "int8" if out == "int32" else "fma"): e for (out, name), e in _PLAIN.items()},
    **{("float32", algorithm, "fp16x3"): limit for algorithm, limit in _SPLIT.items()},
    **{("float32", algorithm, "tf32"): limit for algorithm, limit in _TF32.items()},
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


def limit_of(dtype: str, algorithm: str, math: str | None = None) -> float | None:
    """The limit for results of `dtype` (output), None if there is none: nothing computes it.

    Args:
        math: of precision.NAMES; None: what computed everything before they had names.
    """
    named = math or ("int8" if dtype == "int32" else "fma")
    return TOLERANCES.get((dtype, algorithm, named))


def tolerance(spec: ConvSpec, algorithm: str, math: str | None = None) -> float:
    """The limit for a convolution computed by `algorithm` with the arithmetic `math`.

    Raises:
        UnsupportedError: the table has no limit for them.
    """
    math = math or precision.plain(spec.dtype)
    limit = limit_of(spec.out_dtype, algorithm, math)
    if limit is None:
        raise UnsupportedError(
            f"{algorithm} with {math} and {spec.out_dtype} results has no error limit; add it to "
            "TOLERANCES"
        )
    products = spec.c // spec.groups * spec.r * spec.s
    running = algorithm == "direct" and (spec.out_dtype, math) == ("float32", "fma")
    if running and products > _RUNNING_SUM:
        limit *= sqrt(products / _RUNNING_SUM)
    return limit


Computed = tuple[ConvSpec, str] | tuple[ConvSpec, str, str | None]


def network_ratio(layers: Iterable[Computed]) -> float:
    """The limit for a network of (convolution, algorithm[, arithmetic]): its least exact layer
    may dominate, none is asked to be better than a direct float32 one."""
    worst = (tolerance(*layer) / (tolerance(layer[0], "direct") or 1.0) for layer in layers)
    return NETWORK_RATIO * max((1.0, *worst))


def long_sums(layers: Iterable[Computed]) -> float:
    """What a network may err in any case: the widest limit among its long running sums, 0 without.

    The evaluation that a network is compared with adds up such a sum in parts and errs less: 3.1e-7
    where one of 8,712 products errs 1.4e-6. No network is more exact than its convolutions.
    """
    long = [
        tolerance(*layer)
        for layer in layers
        if layer[1] == "direct" and products_of(layer[0]) > _RUNNING_SUM
    ]
    return max(long, default=0.0)


def products_of(spec: ConvSpec) -> int:
    """Products of one output element."""
    return spec.c // spec.groups * spec.r * spec.s
