"""Shared by the Winograd tests: seeded operands, float64 expectation, a run on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvm_winograd import reference
from tvm_winograd.shapes import ConvSpec, Epilogue

FULL = Epilogue(bias=True, residual=True, relu=True)


def operands(spec: ConvSpec, epilogue: Epilogue) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """(x, w, [bias], [residual]) in the spec's dtypes, zero-mean."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal(spec.input_shape).astype(spec.dtype)
    w = rng.standard_normal(spec.weight_shape).astype("float32") / np.float32(3 * spec.c**0.5)
    extra = []
    if epilogue.bias:
        extra.append(rng.standard_normal(spec.k).astype("float32"))
    if epilogue.residual:
        extra.append(rng.standard_normal(spec.output_shape).astype(spec.dtype))
    return x, w, extra


def expected(spec: ConvSpec, epilogue: Epilogue, x: Any, w: Any, extra: list[Any]) -> np.ndarray:
    """The convolution in float64."""
    rest = list(extra)
    bias = rest.pop(0) if epilogue.bias else None
    residual = rest.pop(0) if epilogue.residual else None
    return reference.apply_epilogue(spec, epilogue, reference.conv2d(spec, x, w), bias, residual)


def run(mod: Any, arrays: list[np.ndarray], shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """main(*arrays, out) on the CPU; out starts as NaN."""
    import tvm

    out = tvm.runtime.tensor(np.full(shape, np.nan, dtype))
    tvm.compile(mod, target="llvm")(*map(tvm.runtime.tensor, arrays), out)
    return out.numpy()
