"""What the tuner tries first holds a config as fast as the shipped one, by a journal's times."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from cuda_kernels import SM90

from tvm_winograd import ConvSpec, Epilogue, TvmWinogradError
from tvm_winograd.schedules import KERNELS
from tvm_winograd.tables import lookup as logs
from tvm_winograd.tuning import spaces

JOURNAL = Path(__file__).parents[1] / "benchmarks/results/h200-2026-11-30-tuning.jsonl"
EPILOGUE = Epilogue(bias=True, relu=True)
LAYERS = {"64": 56, "128": 28, "256": 14, "512": 7}
BY_NAME = {kernel.name: kernel for kernel in KERNELS}
TRIALS = 64


@pytest.fixture(scope="module")
def measured() -> dict:
    """(spec, kernel, config) -> us"""
    times: dict = {}
    for row in map(json.loads, JOURNAL.read_text().splitlines()):
        if row["status"] != "ok" or row["epilogue"] != EPILOGUE.key():
            continue
        try:
            config = BY_NAME[row["kernel"]].make_config(json.loads(row["config"]))
        except TvmWinogradError:
            continue  # an older version's
        key = row["spec"], row["kernel"], config
        times[key] = min(times.get(key, math.inf), row["us"])
    return times


@pytest.fixture(scope="module")
def shipped() -> dict:
    """spec -> us of its fastest row"""
    rows, _ = logs.read_folder(logs.shipped_folder(), SM90.arch)
    best: dict = {}
    for row in rows:
        if row.epilogue == EPILOGUE.key():
            best[row.spec] = min(best.get(row.spec, math.inf), row.us)
    return best


@pytest.mark.parametrize("n", [1, 32, 128])
@pytest.mark.parametrize("channels", LAYERS)
def test_the_first_candidates_hold_a_fast_one(channels, n, measured, shipped) -> None:
    spec = ConvSpec(n, int(channels), LAYERS[channels], LAYERS[channels], int(channels))
    kernels = spaces.kernels_for(spec, EPILOGUE, SM90)[0]
    pairs, _ = spaces._legal(kernels, spec, SM90)
    first = spaces._promising(pairs, spec, SM90)[:TRIALS]
    times = [measured.get((spec.key(), kernel.name, c), math.inf) for kernel, c, _ in first]
    assert min(times) <= 1.05 * shipped[spec.key()]
