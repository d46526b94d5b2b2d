"""The arrays a candidate is run on, and the float64 result it is checked against, as files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..deploy.arguments import numpy_dtype
from ..measure.problem import Problem
from ..shapes import ConvSpec, Epilogue
from ..truth import reference

META, WANT = "problem.json", "want.npy"


@dataclass(frozen=True)
class Written:
    """A convolution with data: `folder` has what the worker loads, `weights` what we pack."""

    folder: Path
    weights: np.ndarray  # (k, c/groups, r, s)


def write_problem(folder: Path, spec: ConvSpec, epilogue: Epilogue, device: str) -> Written:
    """Writes a problem's arrays, in the layout of `spec`, for the process that runs candidates.

    Args:
        device: "cuda" or "cpu", where candidates run.
    """
    folder.mkdir(parents=True)
    problem = Problem(spec, epilogue, device)
    inputs = {name: problem.array(name, spec.layout) for name in problem.arrays if name != "w"}
    for name, value in inputs.items():
        save(folder / f"{name}.npy", value)
    want = reference.from_nchw(problem.want, spec.layout)
    np.save(folder / WANT, want, allow_pickle=False)
    meta = {
        "device": device,
        "out_shape": list(spec.output_shape),
        "out_dtype": spec.out_dtype,
        "inputs": {name: str(value.dtype) for name, value in inputs.items()},
    }
    (folder / META).write_text(json.dumps(meta), encoding="utf-8")
    return Written(folder, problem.arrays["w"])


def save(path: Path, value: np.ndarray) -> None:
    """Writes raw bytes of the dtype: numpy's format has no bfloat16."""
    raw = f"u{value.dtype.itemsize}"
    np.save(path, np.ascontiguousarray(value).view(raw), allow_pickle=False)


def load(path: Path, dtype: str) -> np.ndarray:
    """Reads what `save` wrote."""
    return np.load(path, allow_pickle=False).view(numpy_dtype(dtype))
