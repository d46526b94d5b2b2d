"""Fit the constants of the kernels' estimates (`seconds`) to measurements; prints, changes nothing.

    python benchmarks/fit_estimates.py benchmarks/results/*-selector.jsonl [--journal FILE ...]

Of the selector's grid only even positions are read, of journals of `tvm-winograd tune` what is not
of the held-out half. Configs more than 20 % slower than the kernel's best for a convolution say
little about a default and are left out; those left of one convolution count as one point. Needs
scipy, which the extra [tune] brings.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from common import exit_code
from scipy.optimize import least_squares
from selector import grid, read

from tvm_winograd import ConvSpec, TvmWinogradError
from tvm_winograd.errors import InputError
from tvm_winograd.gpu import Gpu, gpu_for
from tvm_winograd.schedules import KERNELS
from tvm_winograd.schedules.gemm import cost as gemm
from tvm_winograd.schedules.winograd_fused import cost as fused
from tvm_winograd.schedules.winograd_fused import cost_f4 as fused_f4
from tvm_winograd.schedules.winograd_staged import cost as staged

# (kernels, their module, its record of constants, the fields to fit)
ESTIMATES = (
    (("winograd-f2-fused",), fused, "STEPS", ("clocks", "start_clocks", "odd_rows")),
    (("winograd-f4-staged",), staged, "GEMM", ("measured",)),
    (
        ("winograd-f4-fused",),
        fused_f4,
        "CLOCKS",
        ("products", "patch", "far_patch", "store", "odd_store"),
    ),
    (
        ("implicit-gemm", "im2col-gemm"),
        gemm,
        "WAITS",
        ("measured", "guarded", "far", "branch", "store", "word_store", "im2col"),
    ),
)
BY_NAME = {k.name: k for k in KERNELS}
SLOWEST = 1.2  # of a kernel's best
FAR = 0.1  # logarithm: residuals beyond count less than their squares

Point = tuple[ConvSpec, Any, float]  # config, us


def points(kernel: str, grids: list[Path], journals: list[Path]) -> list[Point]:
    """Lists what was measured of a kernel and may be fitted to."""
    fitted, held_out = grid()[::2], {spec.key() for spec in grid()[1::2]}
    found = [by[spec.key()].get(kernel) for by in map(read, grids) for spec in fitted]
    for path in journals:
        for row in map(json.loads, path.read_text().splitlines()):
            if row["kernel"] == kernel and row["status"] == "ok" and row["spec"] not in held_out:
                found.append({**row, "config": json.loads(row["config"])})
    best: dict[str, float] = {}
    out = []
    for row in filter(None, found):
        best[row["spec"]] = min(best.get(row["spec"], math.inf), row["us"])
        try:
            config = BY_NAME[kernel].make_config(row["config"])
        except TvmWinogradError:
            continue  # an older version's
        out.append((ConvSpec.from_key(row["spec"]), config, row["us"]))
    return [p for p in out if p[2] <= SLOWEST * best[p[0].key()]]


def residuals(measured: dict[str, list[Point]], gpu: Gpu) -> np.ndarray:
    """Computes log(measured / estimated) of every point."""
    return np.array(
        [
            math.log(us * 1e-6 / BY_NAME[kernel].seconds(config, spec, gpu))
            for kernel, found in measured.items()
            for spec, config, us in found
        ]
    )


def weights(measured: dict[str, list[Point]]) -> np.ndarray:
    """Weighs every point; those of one kernel and convolution add up to 1."""
    keys = [(kernel, spec) for kernel, found in measured.items() for spec, _, _ in found]
    count = Counter(keys)
    return np.array([1 / count[key] for key in keys])


def fit(
    module: ModuleType,
    record: str,
    names: tuple[str, ...],
    measured: dict[str, list[Point]],
    gpu: Gpu,
) -> np.ndarray:
    """Fits the constants; the module keeps them in its record."""

    def with_constants(scale: np.ndarray) -> np.ndarray:
        values = {n: float(v) for n, v in zip(names, start * np.exp(scale), strict=True)}
        setattr(module, record, replace(getattr(module, record), **values))
        return residuals(measured, gpu) * root

    now = getattr(module, record)
    start, root = np.array([getattr(now, n) for n in names], float), weights(measured) ** 0.5
    found = least_squares(with_constants, np.zeros(len(names)), loss="soft_l1", f_scale=FAR)
    with_constants(found.x)
    return start * np.exp(found.x)


def off(measured: dict[str, list[Point]], gpu: Gpu) -> str:
    """Says how far the estimates are off."""
    logs, weight = residuals(measured, gpu), weights(measured)
    mean = np.average(logs, weights=weight)
    return f"{mean:+.3f} +- {np.average((logs - mean) ** 2, weights=weight) ** 0.5:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("grids", type=Path, nargs="+", help="of benchmarks/selector.py")
    parser.add_argument("--journal", type=Path, nargs="*", default=[], help="of tvm-winograd tune")
    parser.add_argument("--arch", default="sm_90", help="of the GPU that was measured")
    args = parser.parse_args()
    gpu = gpu_for(args.arch)
    for path in args.grids:
        if missing := {spec.key() for spec in grid()} - set(read(path)):
            raise InputError(f"{path} is no whole grid of selector.py: it lacks {min(missing)}")
    for kernels, module, record, names in ESTIMATES:
        measured = {kernel: points(kernel, args.grids, args.journal) for kernel in kernels}
        constants = getattr(module, record)
        before, old = off(measured, gpu), [getattr(constants, name) for name in names]
        new = fit(module, record, names, measured, gpu)
        count, configs = weights(measured).sum(), len(weights(measured))
        print(f"{', '.join(kernels)}: {configs} configs of {count:.0f} convolutions and kernels")
        print(f"  log(measured / estimated) {before} -> {off(measured, gpu)}")
        for name, was, now in zip(names, old, new, strict=True):
            print(f"  {name} {was} -> {now:.4g}")


if __name__ == "__main__":
    sys.exit(exit_code(main))
