"""benchmarks/im2win.py without a GPU: its candidates are legal, and failures become rows."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import pickle
import sys
from pathlib import Path

import pytest

from tvm_winograd import ConvSpec, Epilogue
from tvm_winograd.bench.provider import Bench
from tvm_winograd.bench.rows import Store, read
from tvm_winograd.gpu import gpu_for

FOLDER = Path(__file__).parent.parent / "benchmarks"
SPEC = ConvSpec(n=1, c=4, h=8, w=8, k=8)
H200 = gpu_for("sm_90")


@pytest.fixture(scope="module")
def bench():
    sys.path.insert(0, str(FOLDER))  # as for a script
    found = importlib.util.spec_from_file_location("bench_im2win", FOLDER / "im2win.py")
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    yield module
    sys.path.remove(str(FOLDER))


def test_benchmarks_without_a_gpu_end_with_a_line(bench, monkeypatch, capsys) -> None:
    import common  # of benchmarks/

    monkeypatch.setattr("tvm_winograd.env.collect", lambda: {"gpus": []})
    assert common.exit_code(common.start) == 2
    assert "there is no NVIDIA GPU here" in capsys.readouterr().err
    assert common.exit_code(lambda: None) == 0 and common.exit_code(lambda: 1) == 1


def test_every_candidate_can_be_compiled_elsewhere(bench) -> None:
    provider = bench.Candidates(Bench(None, H200, "NVIDIA H200"), 100, ablated=True)
    for spec in bench.layers(32):
        variants = {v.name: v for v in provider.variants(spec, Epilogue())}
        assert {"im2win", "im2col", "gemm", "direct"} <= set(variants)
        assert sum(name.startswith("im2win") and "without" not in name for name in variants) <= 16
        for variant in variants.values():
            assert pickle.loads(pickle.dumps(variant.build())).spec == spec


def test_what_breaks_is_a_row(bench, monkeypatch, tmp_path, capsys) -> None:
    legal = bench.candidates(SPEC, bench.host_cpu(), 1, False)["im2win"]
    wrong = dataclasses.replace(legal, kernel=dataclasses.replace(legal.kernel, algorithm="gemm"))
    choices = {"im2win": legal, "im2win 1": dataclasses.replace(legal, config=None)}
    choices |= {"direct": "not here", "im2win 2": wrong}
    monkeypatch.setattr(bench, "candidates", lambda *args: choices)
    monkeypatch.setattr(bench, "tolerance", lambda spec, name: 0.0 if name == "gemm" else 1e-6)
    args, path = argparse.Namespace(configs=9), tmp_path / "rows.json"
    rows = bench.measured_on_cpu([SPEC], args, Store([path]))
    assert [row.status for row in rows] == ["ok", "failed", "refused", "failed"]
    assert "relative error" in rows[3].note and rows[2].note == "not here"
    assert read(path) == rows
    bench.im2win_tables.print_times([SPEC], rows, ("direct",))
    bench.im2win_tables.print_memory([SPEC], rows)
    bench.im2win_tables.print_summary([SPEC], rows)
    assert "4, 8² -> 8, 3x3/1" in capsys.readouterr().out
