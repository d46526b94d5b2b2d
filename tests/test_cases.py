"""Shapes on which public systems failed, each with the behaviour that is right."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from convs import error_of
from gpu import local_arch

from tvm_winograd import ConvSpec, TvmWinogradError, conv2d
from tvm_winograd.truth.tolerances import tolerance

ROWS = list(csv.DictReader((Path(__file__).parent / "data" / "conv_cases.csv").open()))
TARGETS = ["llvm", pytest.param("cuda", marks=pytest.mark.gpu)]


def rows(*expect):
    return [pytest.param(r, id=r["why"]) for r in ROWS if r["expect"] in expect]


def spec_of(row):
    padding = tuple(int(row[f"pad_{side}"]) for side in ("top", "left", "bottom", "right"))
    names = ("n", "c", "h", "w", "k", "r", "s", "stride", "dilation", "groups")
    sizes = {name: int(row[name]) for name in names}
    return ConvSpec(**sizes, padding=padding, dtype=row["dtype"], layout=row["layout"])


def check(spec, target, algorithm):
    arch = local_arch() if target == "cuda" else None
    compiled = conv2d(spec, target, arch, algorithm)
    assert error_of(compiled) <= tolerance(spec, compiled.choice.algorithm)
    return compiled.choice


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("row", rows("winograd"))
def test_winograd_is_right_when_forced_and_auto_is_right(row, target):
    spec = spec_of(row)
    assert check(spec, target, "winograd").algorithm.startswith("winograd")
    check(spec, target, "auto")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("row", rows("auto"))
def test_another_kernel_takes_it_and_says_why(row, target):
    spec = spec_of(row)
    with pytest.raises(TvmWinogradError, match="Winograd") as refused:
        conv2d(spec, target, algorithm="winograd")
    choice = check(spec, target, "auto")
    assert not choice.algorithm.startswith("winograd")
    why = str(refused.value).split(": ", 1)[1]
    assert why in choice.reason


@pytest.mark.parametrize("row", rows("error"))
def test_impossible_is_refused_with_the_bad_value(row):
    with pytest.raises(TvmWinogradError) as refused:
        spec_of(row)
    bad = {"negative padding": "-1", "output would be empty": "0x0", "empty batch": "n=0"}
    assert bad[row["why"]] in str(refused.value)


def test_every_row_is_tested():
    assert {r["expect"] for r in ROWS} == {"winograd", "auto", "error"}
