"""With which arithmetic products are computed: a record per arithmetic, a list per architecture.

Names of what ran (`Math.name`) stand in manifests, tables and rows, names of what a user asks for
(`WISHES`) in `--math` and `math=`. Storage is another matter (`ConvSpec.dtype`): 16-bit maps are
widened and multiplied with FMA by today's kernels.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from .errors import UnsupportedError


@dataclass(frozen=True)
class Math:
    """One way to multiply and add on one kind of unit."""

    name: str  # of what ran
    operand: str  # dtype of the factors that the instruction multiplies
    accumulate: str  # dtype of their sums
    instruction: str  # "fma", "mma" (a warp), "wgmma" (four warps), "tcgen05" (a block)
    error: float  # largest relative error of a float32 factor behind its conversion
    products: int = 1  # instructions for one product of two factors


FMA = Math("fma", "float32", "float32", "fma", 2.0**-24)
INT8 = Math("int8", "int8", "int32", "fma", 0.0)


def _tensor_core(instruction: str) -> dict[str, Math]:
    """Every arithmetic of a matrix instruction, by name."""
    rows = (
        # x = hi + lo, both float16 of 11 bits; lo * lo is left out
        Math("fp16x3", "float16", "float32", instruction, 2.0**-22, products=3),
        Math("tf32", "tf32", "float32", instruction, 2.0**-11),
        Math("fp16", "float16", "float32", instruction, 2.0**-11),
        Math("bf16", "bfloat16", "float32", instruction, 2.0**-8),
    )
    return {row.name: row for row in rows}


_MMA, _WGMMA, _TCGEN05 = map(_tensor_core, ("mma", "wgmma", "tcgen05"))
_AMPERE = (FMA, INT8, *_MMA.values())
_BLACKWELL = (FMA, INT8, *_TCGEN05.values())

# Architecture -> what its instructions offer; that a kernel exists is said by `Kernel.math`.
ARCHITECTURES: dict[str, tuple[Math, ...]] = {
    "cpu": (FMA, INT8),
    "sm_75": (FMA, INT8, _MMA["fp16x3"], _MMA["fp16"]),  # neither TF32 nor bfloat16
    "sm_80": _AMPERE,
    "sm_86": _AMPERE,
    "sm_87": _AMPERE,
    "sm_89": _AMPERE,
    "sm_90": (FMA, INT8, *_WGMMA.values()),
    "sm_100": _BLACKWELL,
    "sm_103": _BLACKWELL,
    "sm_110": _BLACKWELL,
    "sm_120": _AMPERE,
    "sm_121": _AMPERE,
}
NAMES = tuple(dict.fromkeys(math.name for row in ARCHITECTURES.values() for math in row))

# What may be asked for -> with what float32 products may then be computed.
WISHES = {
    "float32": ("fma", "fp16x3"),  # anything as exact as float32
    "fma": ("fma",),
    "tf32": ("fma", "fp16x3", "tf32"),  # TF32 too; nothing must be less exact than asked for
}
# The arithmetic of a storage dtype that is exact for it: allowed whatever is asked for.
_OF_STORAGE = {"float16": "fp16", "bfloat16": "bf16", "int8": "int8"}


def check_wish(wish: str) -> None:
    """Raises:
    UnsupportedError: not one of WISHES.
    """
    if not isinstance(wish, str) or wish not in WISHES:
        raise UnsupportedError(f"math={wish!r}: there are {', '.join(WISHES)}")


def allowed(wish: str, dtype: str) -> Collection[str]:
    """What may compute products of `dtype` (storage) where a user asks for `wish`.

    Raises:
        UnsupportedError: not one of WISHES.
    """
    check_wish(wish)
    if dtype == "int8":
        return ("int8",)
    own = _OF_STORAGE.get(dtype)
    return WISHES[wish] if own is None else (*WISHES[wish], own)


def plain(dtype: str) -> str:
    """What multiplied values of `dtype` before arithmetics had names: old tables and artifacts."""
    return "int8" if dtype == "int8" else "fma"


def error_of(name: str) -> float:
    """The largest relative error of a float32 factor in the arithmetic `name`."""
    return next(m.error for row in ARCHITECTURES.values() for m in row if m.name == name)


def missing(name: str, arch: str) -> str | None:
    """None, or the reason why an architecture cannot compute with the arithmetic `name`."""
    have = [math.name for math in ARCHITECTURES.get(arch, ())]
    return None if name in have else f"{arch} has no {name}: it has {', '.join(have)}"
