"""Small odd convolutions and the configs that compute them, for the emulator and for a GPU."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from convs import FULL, random_arrays

from tvm_winograd.schedules.tensor_core.config import TensorCore
from tvm_winograd.shapes import ConvSpec, Epilogue

NONE, BIAS, RELU6 = Epilogue(), Epilogue(bias=True), Epilogue(bias=True, relu6=True)
BASE = ConvSpec(n=2, c=32, h=9, w=7, k=128, layout="NHWC")
SMALL = TensorCore(stages=3, blocks=3)  # more steps than stages, more tiles than blocks
TALL = replace(SMALL, rows=192, filters=64)
NARROW = replace(SMALL, filters=64)
PATCH = replace(TALL, patch=320)


def _spec(**values) -> ConvSpec:
    return replace(BASE, **values)


# name -> (convolution, epilogue, config)
CASES: dict[str, tuple[ConvSpec, Epilogue, TensorCore]] = {
    "plain": (BASE, NONE, SMALL),
    "one-pixel": (_spec(n=1, h=1, w=1), FULL, SMALL),
    "pointwise": (_spec(r=1, s=1, padding=0, c=132, k=72), FULL, SMALL),
    "pointwise-strided": (_spec(r=1, s=1, padding=0, stride=2, c=64, k=260), BIAS, SMALL),
    "strided": (_spec(n=3, c=36, k=72, stride=2), FULL, SMALL),
    "ragged-filters": (_spec(c=40, k=131), FULL, SMALL),
    "ragged-channels": (_spec(c=37, k=70), FULL, SMALL),
    "three-consumers": (_spec(c=36, k=64), FULL, TALL),
    "one-channel": (_spec(c=1, k=10, r=5, s=5, padding=2), RELU6, NARROW),
    "stem": (
        _spec(c=3, k=20, h=17, w=15, r=7, s=5, stride=2, padding=(3, 2, 3, 1)),
        RELU6,
        replace(TALL, promote=1),
    ),
    "wide-filter": (_spec(c=4, k=36, h=13, w=13, r=1, s=11, padding=(0, 5, 0, 5)), FULL, TALL),
    "dilated": (_spec(c=68, h=11, w=13, dilation=2, padding=(2, 2, 2, 2)), FULL, NARROW),
    "unpadded": (_spec(padding=0, c=64, k=68), BIAS, TALL),
    "far-padding": (_spec(padding=(3, 4, 3, 0), k=64), FULL, NARROW),
    "groups": (_spec(c=72, k=140, groups=2), FULL, SMALL),
    "groups-of-ragged-channels": (_spec(c=66, k=66, groups=2), FULL, NARROW),
    "many-images": (_spec(n=40, h=3, w=2, c=64, k=64), FULL, TALL),
    "promoted-each-step": (_spec(c=40), FULL, replace(SMALL, promote=1)),
    "two-stages": (_spec(c=64), FULL, replace(SMALL, stages=2)),
    "taking-no-turns": (_spec(c=64), FULL, replace(SMALL, ordered=False)),
    "shares": (_spec(c=64), FULL, replace(SMALL, shares=3)),
    "a-step-a-share": (_spec(n=1, k=64), FULL, replace(NARROW, blocks=9, shares=9)),
    "shares-of-the-last": (_spec(n=3, c=36, h=13, w=11, k=200), FULL, replace(SMALL, shares=3)),
    "shares-of-tall-tiles": (_spec(n=10, c=36, k=70), FULL, replace(TALL, shares=2)),
    "shares-fewer-than-blocks": (_spec(n=7, h=8, w=8, k=64), BIAS, replace(NARROW, shares=2)),
    "patch": (_spec(c=64), FULL, PATCH),
    "patch-of-wide-tiles": (_spec(n=3, c=96, h=10, w=12), FULL, replace(SMALL, patch=224)),
    "patch-dilated": (_spec(c=64, k=68, h=12, w=11, dilation=2, padding=2), FULL, PATCH),
    "patch-unpadded": (_spec(n=5, k=64, r=2, s=5, padding=0), BIAS, replace(PATCH, promote=1)),
    "patch-of-groups": (_spec(c=128, k=72, groups=2), FULL, replace(PATCH, ordered=False)),
    "patch-shares": (_spec(n=5, c=64), FULL, replace(PATCH, shares=3)),
}  # fmt: skip


def extreme(kind: str, seed: int = 0) -> tuple[ConvSpec, Epilogue, list[np.ndarray]]:
    """Data that a scale must not get wrong: three images of 3x3, whose magnitudes differ."""
    spec = _spec(n=3, c=36, k=68, h=5, w=6)
    x, w = random_arrays(spec, NONE, seed)
    x, w = _EXTREMES[kind](x.copy(), w.copy())
    return spec, NONE, [x.astype("float32"), w.astype("float32")]


def _one_infinite(x: np.ndarray, value: float) -> np.ndarray:
    x[1, 2, 3, 5] = value
    return x


def _by_image(x: np.ndarray, *factors: float) -> np.ndarray:
    return x * np.array(factors, "float64").reshape(-1, 1, 1, 1)


_EXTREMES = {
    "tiny": lambda x, w: (x * 1e-30, w),
    "huge": lambda x, w: (x * 1e30, w),
    "tiny-weights": lambda x, w: (x, w * 1e-30),
    "huge-weights": lambda x, w: (x, w * 1e30),
    "opposite": lambda x, w: (x * 1e-30, w * 1e30),
    "opposite-too": lambda x, w: (x * 1e30, w * 1e-30),
    "largest": lambda x, w: (x / np.abs(x).max() * 3e38, w * 1e-3),
    "both-small": lambda x, w: (x * 2e-18, w * 1e-18),
    "zero": lambda x, w: (x * 0, w),
    "zero-weights": lambda x, w: (x, w * (np.arange(w.shape[0]) % 2).reshape(-1, 1, 1, 1)),
    "denormal": lambda x, w: (x * 1e-42, w),
    "zero-image": lambda x, w: (_by_image(x, 1, 0, 1), w),
    "images-apart": lambda x, w: (_by_image(x, 1, 1e6, 1e-6), w),
    "filters-apart": lambda x, w: (
        x, w * np.where(np.arange(w.shape[0]) % 2, 1e6, 1e-6).reshape(-1, 1, 1, 1)
    ),
    "infinity": lambda x, w: (_one_infinite(x, np.inf), w),
    "nan": lambda x, w: (_one_infinite(x, np.nan), w),
}  # fmt: skip
EXTREMES = tuple(_EXTREMES)
