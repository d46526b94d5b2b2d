"""The scripts of benchmarks/ without a GPU: what they list, compile, keep and print."""

from __future__ import annotations

import json

import pytest

from tvm_winograd import ConvSpec, Epilogue
from tvm_winograd.bench.conv.provider import Bench
from tvm_winograd.bench.conv.rows import Row
from tvm_winograd.gpu import gpu_for
from tvm_winograd.measure.conditions import Conditions
from tvm_winograd.measure.engine import Outcome, Prepared
from tvm_winograd.measure.row_files import Store

GPU = gpu_for("sm_90")
BENCH = Bench(None, GPU, "NVIDIA H200")  # type: ignore[arg-type]
SPEC = ConvSpec(2, 64, 14, 14, 32, 1, 1, 1, (0,) * 4)


def timed(spec: ConvSpec, provider: str, variant: str, us: float, config: str = "") -> Row:
    times = {"mode": "graph", "l2": "warm", "us": us, "spread_us": 0.12345, "error": 1.23456e-7}
    return Row(
        spec.key(), "none", provider, variant, "ok", **times, tflops=2.0, config=config, gpu="x"
    )


def test_a_grid_continues_where_it_was(script, tmp_path, capsys):
    selector = script("selector")
    path, spec = tmp_path / "grid.jsonl", selector.grid()[0]
    todo = {spec: {k.name: config for k, config in selector.missing(spec, {}, GPU)}}
    first, second = list(todo[spec])[:2]
    assert selector.listed(todo, spec, selector.EPILOGUE)[first].config == todo[spec][first]
    with path.open("a") as file:
        lines = selector.Lines(file, todo)
        lines.add([timed(spec, "ours", first, 12.34567)])
        lines.add([Row(spec.key(), "none", "ours", second, "failed", note="too large")])
    (line,) = map(json.loads, path.read_text().splitlines())
    assert (line["us"], line["spread_us"], line["error"]) == (12.346, 0.123, 1.235e-07)
    assert f"{second} is left out: too large" in capsys.readouterr().err
    left = [kernel.name for kernel, _ in selector.missing(spec, selector.read(path), GPU)]
    assert left == [name for name in todo[spec] if name != first]


def test_implicit_gemm_beside_its_peers(script):
    gemm = script("gemm")
    assert len(gemm.layers(1)) == len(set(gemm.layers(1))) == 25
    named = gemm.candidates(SPEC, "gemm", GPU, 3)
    assert list(named) == ["default", "config 1", "config 2"]
    texts = [f"implicit-gemm {json.dumps(c.as_dict()['config'])}" for c in named.values()]
    rows = [timed(SPEC, "ours", name, 9.0 - i, texts[i]) for i, name in enumerate(named)]
    rows += [timed(SPEC, "torch", "conv2d", 20.0), timed(SPEC, "cublas", "matmul", 5.0)]
    line = gemm.summary(SPEC, rows)
    assert line[:6] == ["64, 14² -> 32, 1x1/1", "9.0 (2.0)", "7.0 (2.0)", "20.0 (2.0)",
                        "5.0 (2.0)", "1.2e-07"]  # fmt: skip
    failed = [Row(SPEC.key(), "none", "ours", "default", "failed", note="no")]
    assert gemm.summary(SPEC, failed)[1:] == [""] * 7


def test_cublas_takes_1x1_alone(script):
    gemm, three = script("gemm"), ConvSpec(1, 64, 14, 14, 64)
    assert list(gemm.CuBlas(BENCH).variants(three, Epilogue())) == []


def test_depthwise_rows(script):
    depthwise = script("depthwise")
    spec = ConvSpec(2, 32, 14, 14, 32, groups=32)
    named = depthwise.candidates(spec, BENCH, 2, dlight=True)
    assert list(named) == ["default", "config 1", "dlight"]
    rows = [depthwise.converted(timed(spec, "ours", name, 4.0 - i)) for i, name in enumerate(named)]
    rows.append(depthwise.converted(timed(spec, "torch", "conv2d", 8.0)))
    assert [row.provider for row in rows] == ["default", "config", "dlight", "torch"]
    assert rows[0].gb_per_s == pytest.approx(spec.bytes / 4.0 / 1e3) and rows[0].gpu == "x"
    assert depthwise.summary(rows)[1:6] == [
        "32, 14², 3x3/1", "4.0 (25)", "3.0 (34)", "2.0 (51)", "8.0 (13)",
    ]  # fmt: skip


def test_functions_compile_without_a_gpu(script, tmp_path):
    functions = script("depthwise_functions")
    for name, dlight, how in (
        ("dense 512 to 1000", False, "cuda.dense"),
        ("average pool 3x3/1, 192, 28²", True, "GeneralReduction"),
    ):
        folder = tmp_path / how
        folder.mkdir()
        functions.FunctionBuild(name, 1, "sm_90", dlight)(folder)
        assert (folder / functions.LIBRARY).stat().st_size > 1000
        assert how in (folder / functions.HOW).read_text()


class Data:
    """Of a function, without a GPU."""

    name, batch, bytes = "dense 512 to 1000", 2, 4_000_000


def test_rows_of_functions(script, tmp_path):
    functions, rows = script("depthwise_functions"), script("depthwise_rows")
    case = functions.FunctionCase(Data, "dlight", None, BENCH, Conditions(gpu="x"))
    assert case.name == "dense 512 to 1000, batch 2: dlight" and not case.ours
    prepared = Prepared(print, print, config="dlight.GEMV")
    figures = {"us": 4.0, "spread_us": 0.1, "gb_per_s": 1000.0}
    good = case.row(Outcome("ok", prepared, 1e-7, 1e-6, figures))
    bad = case.row(Outcome("refused", note="no"))
    assert (good.detail, good.us, good.gpu) == ("dlight.GEMV", 4.0, "x")
    assert (bad.us, bad.note, bad.gpu) == (None, "no", "x")
    assert case.line([good]).endswith("4.0 us") and case.line([bad]).endswith("no")
    store = Store(rows.ROWS, [tmp_path / "rows.csv"])
    store.add([good])
    store.add([bad])
    assert rows.ROWS.read(tmp_path / "rows.csv") == [bad]
