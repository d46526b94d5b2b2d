"""The arrays a candidate is run on, and the float64 result it is checked against, as files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..shapes import ConvSpec, Epilogue
from ..truth import peers, reference

META, WANT = "problem.json", "want.npy"


@dataclass(frozen=True)
class Problem:
    """A convolution with data: `folder` has what the worker loads, `weights` what we pack."""

    folder: Path
    weights: np.ndarray  # (k, c/groups, r, s)


def write_problem(folder: Path, spec: ConvSpec, epilogue: Epilogue, device: str) -> Problem:
    """Random zero-mean arrays (positive data hide errors), outputs of variance about 1."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    fan_in = spec.c // spec.groups * spec.r * spec.s
    x = _random(rng, spec.input_shape, spec.dtype)
    w = _random(rng, spec.weight_shape, spec.dtype, fan_in**-0.5)
    bias = _random(rng, (spec.k,), spec.acc) if epilogue.bias else None
    residual = _random(rng, spec.output_shape, spec.out_dtype) if epilogue.residual else None
    want = reference.apply_epilogue(spec, epilogue, _conv64(spec, x, w, device), bias, residual)
    inputs = {"x": x, "bias": bias, "residual": residual}
    for name, value in inputs.items():
        if value is not None:
            save(folder / f"{name}.npy", value)
    np.save(folder / WANT, want, allow_pickle=False)
    meta = {
        "device": device,
        "out_shape": list(spec.output_shape),
        "out_dtype": spec.out_dtype,
        "inputs": {n: str(v.dtype) for n, v in inputs.items() if v is not None},
    }
    (folder / META).write_text(json.dumps(meta), encoding="utf-8")
    return Problem(folder, w)


def _conv64(spec: ConvSpec, x: np.ndarray, w: np.ndarray, device: str) -> np.ndarray:
    """The convolution in float64: by torch on the GPU if it is there, which saves minutes."""
    if device == "cuda" and spec.acc == "float32" and peers.has_torch_cuda():
        return peers.cuda_conv64(spec, x, w)
    return reference.conv2d(spec, x, w)


def save(path: Path, value: np.ndarray) -> None:
    """As raw bytes of its dtype: numpy's format has no bfloat16."""
    np.save(path, np.ascontiguousarray(value).view(_raw(value.dtype)), allow_pickle=False)


def load(path: Path, dtype: str) -> np.ndarray:
    """The inverse of `save`."""
    return np.load(path, allow_pickle=False).view(numpy_dtype(dtype))


def numpy_dtype(name: str) -> Any:
    """numpy's dtype, bfloat16 included."""
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


def _raw(dtype: Any) -> str:
    return f"u{dtype.itemsize}"


def _random(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: str, scale: float = 1.0
) -> np.ndarray:
    if dtype in ("int8", "int32"):
        return rng.integers(-128, 128, shape).astype(dtype)
    return (rng.standard_normal(shape) * scale).astype(numpy_dtype(dtype))
