"""The choice without tables against what an H200 measured: the grid of benchmarks/selector.py.

`python benchmarks/selector.py --out FILE` measures what is missing, and again where a kernel's
default has changed; until then a convolution that would get it does not count.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tvm_winograd import ConvSpec
from tvm_winograd.choose.select import choose
from tvm_winograd.gpu import gpu_for
from tvm_winograd.schedules import KERNELS
from tvm_winograd.truth.tolerances import tolerance

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
RESULTS = BENCHMARKS / "results"
GRID = RESULTS / "h200-2026-11-30-selector.jsonl"
H200 = gpu_for("sm_90")
ALGORITHMS = {kernel.name: kernel.algorithm for kernel in KERNELS}
CLOSE = 1.1  # to the fastest measured candidate
SHARE = 0.9  # of the convolutions are close
COUNTED = 90  # convolutions of a half, at least, whose choice is measured


@pytest.fixture(scope="module")
def selector(script):
    return script("selector")


@pytest.fixture(scope="module")
def rows(selector):
    return selector.read(GRID)


def test_the_file_is_of_the_grid(selector, rows):
    grid = selector.grid()
    assert len(grid) == len(set(grid)) == selector.COUNT
    assert rows.keys() == {spec.key() for spec in grid}
    where = json.loads(GRID.read_text().splitlines()[0])["where"]
    assert (where["gpu"], where["arch"]) == ("NVIDIA H200", "sm_90")


def test_every_candidate_is_there_and_right(selector, rows):
    for i, (key, found) in enumerate(rows.items()):
        spec = ConvSpec.from_key(key)
        if i % 10 == 0:  # it takes 50 ms
            able = {kernel.name for kernel, _ in selector.candidates(spec, H200)}
            assert able <= found.keys(), key
        for name, row in found.items():
            assert row["us"] > 0
            assert row["error"] <= tolerance(spec, ALGORITHMS[name]), (key, name)


@pytest.mark.parametrize("half", [0, 1], ids=["fitted", "held out"])
def test_the_choice_is_close_to_the_fastest(half, selector, rows):
    close, far, unmeasured = 0, [], []
    for spec in selector.grid()[half::2]:
        if (found := rows.get(spec.key())) is None:
            unmeasured.append(spec.key())
            continue
        choice = choose(spec, selector.EPILOGUE, H200)
        row = found[choice.kernel.name]
        best = min(found.values(), key=lambda row: row["us"])
        if not selector.describes(row, choice.kernel, choice.config):
            unmeasured.append(spec.key())
        elif row["us"] <= CLOSE * best["us"]:
            close += 1
        else:
            times = [f"{r['kernel']} {r['us']} us" for r in (row, best)]
            far.append(f"{spec.key()}: {', '.join(times)}")
    counted = close + len(far)
    report = "\n".join([f"{close} of {counted}, {len(unmeasured)} not measured", *far])
    print(report)
    assert counted >= COUNTED, report
    assert close >= SHARE * counted, report


def test_estimates_are_fitted_to_the_other_half(selector, script):
    pytest.importorskip("scipy")
    fit = script("fit_estimates")
    held_out = set(selector.grid()[1::2])
    journals = list(RESULTS.glob("h200-*-tuning.jsonl"))
    for kernels, module, record, names in fit.ESTIMATES:
        assert all(getattr(getattr(module, record), name) > 0 for name in names)
        for kernel in kernels:
            used = {spec for spec, _, _ in fit.points(kernel, [GRID], journals)}
            assert used and not used & held_out
