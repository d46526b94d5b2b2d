"""benchmarks/im2win.py without a GPU: its candidates are legal, and failures become rows."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import pickle

import pytest

from tvm_winograd import ConvSpec, Epilogue
from tvm_winograd.bench.conv import run
from tvm_winograd.bench.conv.provider import Bench
from tvm_winograd.bench.conv.rows import Store, read
from tvm_winograd.choose.select import kernels_of
from tvm_winograd.gpu import gpu_for
from tvm_winograd.schedules.base.kernel import config_dict
from tvm_winograd.tables.lookup import Row

SPEC = ConvSpec(n=1, c=4, h=8, w=8, k=8)
H200 = gpu_for("sm_90")


@pytest.fixture(scope="module")
def bench(script):
    return script("im2win")


def test_benchmarks_without_a_gpu_end_with_a_line(bench, monkeypatch, capsys) -> None:
    import common  # of benchmarks/

    monkeypatch.setattr("tvm_winograd.env.collect", lambda: {"gpus": []})
    assert common.exit_code(bench.opened().__enter__) == 2
    assert "there is no NVIDIA GPU here" in capsys.readouterr().err
    assert common.exit_code(lambda: None) == 0 and common.exit_code(lambda: 1) == 1


def test_every_candidate_can_be_compiled_elsewhere(bench) -> None:
    asked = argparse.Namespace(configs=100, ablation=True)
    made = Bench(None, H200, "NVIDIA H200")
    provider = bench.Listed(made, functools.partial(bench.listed, made, asked))
    for spec in bench.layers(32):
        variants = {v.name: v for v in provider.variants(spec, Epilogue())}
        assert {"im2win", "im2col", "gemm", "direct"} <= set(variants)
        assert sum(name.startswith("im2win") and "without" not in name for name in variants) <= 24
        for variant in variants.values():
            assert pickle.loads(pickle.dumps(variant.build())).spec == spec


@pytest.mark.parametrize("algorithm", ["im2win", "im2col"])
def test_tables_and_further_candidates(bench, algorithm: str) -> None:
    kernel = kernels_of(algorithm, H200)[0]
    first, *others = kernel.configs(SPEC, H200)
    row = Row(
        "NVIDIA H200", "sm_90", SPEC.key(), "none", kernel.name, config_dict(others[1]), 12.0,
        algorithm, 3e-7,
    )  # fmt: skip

    def found(most: int, *rows: Row) -> list:
        named = bench.candidates(SPEC, H200, most, False, rows, "NVIDIA H200").items()
        return [(name, c.config) for name, c in named if name.startswith(algorithm)]

    assert found(1) == [(algorithm, first)]
    with_row = [(algorithm, others[1]), (f"{algorithm} default", first)]
    assert found(1, row) == with_row
    assert found(2, row) == [*with_row, (f"{algorithm} 1", others[0])]
    assert found(2) == [(algorithm, first), (f"{algorithm} 1", others[0])]


def test_best_against_best_and_defaults_beside(bench, capsys) -> None:
    times = {"im2win": 9.0, "im2win default": 12.0, "im2win 1": 8.0, "im2win without tiling": 1.0}
    times |= {"im2col": 11.0, "im2col 1": 10.0}
    rows = [
        bench.Row(SPEC.key(), "none", "ours", name, "ok", "graph", "warm", us=us, tflops=1.0)
        for name, us in times.items()
    ]
    bench.im2win_tables.print_times([SPEC], rows, ("im2col",))
    bench.im2win_tables.print_summary([SPEC], rows)
    out = capsys.readouterr().out
    figures = [word for word in out.replace("(1.00)", " ").split() if "." in word]
    assert figures[:6] == ["12.0", "11.0", "8.0", "10.0", "1.25", "1.25"], out
    assert "1 of 1" in out


def test_what_breaks_is_a_row(bench, monkeypatch, tmp_path, capsys) -> None:
    legal = bench.candidates(SPEC, bench.host_cpu(), 1, False)["im2win"]
    wrong = dataclasses.replace(legal, kernel=dataclasses.replace(legal.kernel, algorithm="gemm"))
    choices = {"im2win": legal, "im2win 1": dataclasses.replace(legal, config=None)}
    choices |= {"direct": "not here", "im2win 2": wrong}
    monkeypatch.setattr(bench, "candidates", lambda *args: choices)
    monkeypatch.setattr(run, "tolerance", lambda spec, name, math: 0.0 if name == "gemm" else 1e-6)
    args, path = argparse.Namespace(configs=9, ablation=False), tmp_path / "rows.json"
    rows = bench.measured_on_cpu([SPEC], args, Store([path]))
    assert [row.status for row in rows] == ["ok", "failed", "refused", "wrong"]
    assert "relative error" in rows[3].note and rows[2].note == "not here"
    assert read(path) == rows
    bench.im2win_tables.print_times([SPEC], rows, ("direct",))
    bench.im2win_tables.print_memory([SPEC], rows)
    bench.im2win_tables.print_summary([SPEC], rows)
    assert "4, 8² -> 8, 3x3/1" in capsys.readouterr().out
