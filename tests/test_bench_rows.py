"""Rows of benchmarks: files, comparisons and pictures, all from made-up rows."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tvm_winograd.bench.conv import layers
from tvm_winograd.bench.conv.compare import FASTEST_CUDNN, Setting, markdown, means, ours, tables
from tvm_winograd.bench.conv.rows import Row, Store, as_csv, as_json, read
from tvm_winograd.cli import main
from tvm_winograd.errors import InputError
from tvm_winograd.shapes import ConvSpec

A, B = (ConvSpec(n=n, c=64, h=56, w=56, k=64) for n in (32, 128))
TIMES = {  # provider, variant -> us at A, at B
    ("ours", "best"): (100.0, 300.0),
    ("ours", "winograd-f2"): (90.0, 400.0),
    ("cudnn", "GEMM"): (400.0, 600.0),
    ("cudnn", "FFT"): (200.0, 1200.0),
    ("torch", "conv2d"): (300.0, 900.0),
}


def timed(spec: ConvSpec, provider: str, variant: str, us: float, **values) -> Row:
    row = Row(
        spec=spec.key(),
        epilogue="none",
        provider=provider,
        variant=variant,
        status="ok",
        mode="graph",
        l2="warm",
        us=us,
        spread_us=0.5,
        tflops=spec.flops / us / 1e6,
        error=3e-7,
        layout="NCHW",
        config='winograd-f2-fused {"bk": 64}, default',
        workspace_bytes=1 << 20,
        calls=20,
        repeats=50,
        gpu="NVIDIA H200",
        arch="sm_90",
        date="2026-11-30",
    )
    return replace(row, **values)


def refused(spec: ConvSpec, variant: str) -> Row:
    note = "cudnnConvolutionForward: not supported, | really"
    return Row(
        spec.key(), "none", "cudnn", variant, "refused", note=note, gpu="NVIDIA H200", arch="sm_90"
    )


def canned() -> list[Row]:
    rows = [
        timed(spec, *name, us)
        for name, times in TIMES.items()
        for spec, us in zip((A, B), times, strict=True)
    ]
    return [*rows, refused(A, "DIRECT"), refused(B, "DIRECT")]


@pytest.mark.parametrize("form", ["json", "csv"])
def test_round_trip(form, tmp_path):
    path = tmp_path / f"rows.{form}"
    path.write_text(as_json(canned()) if form == "json" else as_csv(canned()))
    assert read(path) == canned()


def test_a_store_writes_each_batch_and_keeps_what_was_there(tmp_path):
    paths = [tmp_path / "deep" / "rows.json", tmp_path / "rows.csv"]
    first = Store(paths)
    for row in canned():
        first.add([row])
        assert read(paths[0])[-1] == read(paths[1])[-1] == row  # a kill would keep it
    again = Store(paths)
    again.add([timed(A, "ours", "best", 50.0)])
    rows = read(paths[0])
    assert len(rows) == len(canned())
    assert [r.us for r in rows if r.name == "ours best"] == [50.0, 300.0]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["deep", "rows.csv"]


def test_what_a_new_row_replaces():
    store, other = Store(), timed(A, "ours", "best", 1.0, mode="back_to_back")
    store.add([timed(A, "cudnn", "FFT", 1.0), other])
    store.add([timed(A, "cudnn", "FFT", 2.0)])
    assert [row.us for row in store.rows] == [2.0, 1.0]
    store.add([refused(A, "FFT")])
    assert store.rows == [refused(A, "FFT"), other]
    store.add([timed(A, "cudnn", "FFT", 3.0)])
    assert [row.us for row in store.rows] == [3.0, 1.0]


def test_unknown_columns_are_passed_by(tmp_path):
    path = tmp_path / "rows.json"
    records = json.loads(as_json(canned()))["rows"]
    path.write_text(json.dumps({"rows": [{**r, "weather": "rain"} for r in records]}))
    assert read(path) == canned()


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", "[", "no file of rows"),
        ("a.json", '{"rows": [{"spec": 1}]}', "row 1"),
        ("a.json", '{"rows": [7]}', "row 1"),
        ("a.csv", "spec,provider,variant\nn1,ours,best\n", "row 1: no epilogue, status: a row"),
        ("a.csv", "spec,epilogue,provider,variant,status,us\nn1,none,ours,best,ok,fast\n", "row 1"),
        ("a.csv", "spec,epilogue,provider,variant,status\nn1,none,ours,best,great\n", "great"),
        (
            "a.csv",
            "spec,epilogue,provider,variant,status\nn1,none,ours,best,ok\n",
            "without a time",
        ),
    ],
)
def test_bad_files(name, text, message, tmp_path):
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=message):
        read(tmp_path / name)


def test_other_endings_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"\.json or \.csv"):
        Store([tmp_path / "rows.txt"])
    with pytest.raises(InputError, match="cannot be read"):
        read(tmp_path / "nothing.json")


def test_means():
    ((setting, table),) = tables(canned()).items()
    assert setting == Setting("NVIDIA H200", "none", "graph", "warm")
    assert ours(table[A.key()]).variant == "best"  # not our fastest: what a user gets
    found = {m.other: (m.ratio, m.layers) for m in means(table)}
    # at A: FFT 200 / 100, at B: GEMM 600 / 300
    assert found[FASTEST_CUDNN] == (pytest.approx(2.0), 2)
    assert found["cudnn GEMM"] == (pytest.approx((4.0 * 2.0) ** 0.5), 2)
    assert found["ours winograd-f2"] == (pytest.approx((0.9 * 400 / 300) ** 0.5), 2)
    assert "cudnn DIRECT" not in found and "ours best" not in found


def test_modes_and_epilogues_do_not_mix():
    rows = canned() + [replace(r, mode="back_to_back", us=9.0) for r in canned() if r.mode]
    rows += [replace(r, epilogue="relu", us=1.0) for r in canned() if r.mode]
    found = tables(rows)
    assert len(found) == 3
    assert all(r.us == 9.0 for s, t in found.items() for r in t[A.key()].values()
               if s.mode == "back_to_back" and r.us)  # fmt: skip


def test_table():
    text = markdown(canned())
    assert "## NVIDIA H200, graph, L2 warm, epilogue none" in text
    lines = [line for line in text.splitlines() if "N32 C64 56x56" in line]
    assert [line.split("|")[2].strip() for line in lines] == [
        "ours winograd-f2", "ours best", "cudnn FFT", "torch conv2d", "cudnn GEMM", "cudnn DIRECT",
    ]  # fmt: skip
    assert "3.00" in lines[3] and "winograd-f2-fused, NCHW" in lines[1]
    assert "refused: cudnnConvolutionForward: not supported, / really" in lines[5]
    assert markdown([]) == ""


def test_only_our_other_variants_without_best():
    rows = [row for row in canned() if row.variant != "best"]
    (table,) = tables(rows).values()
    assert ours(table[B.key()]).variant == "winograd-f2"


def test_layers():
    specs = layers.named("resnet")
    assert len(specs) == 16 and specs[0].n == 32 and specs[-1] == ConvSpec(128, 512, 7, 7, 512)
    assert {spec.n for spec in layers.named("vgg", (2, 4))} == {2, 4}
    assert len(set(layers.named("vgg"))) == 9
    assert layers.at_batches([A], (1, 2)) == [replace(A, n=1), replace(A, n=2)]
    with pytest.raises(InputError, match="alexnet"):
        layers.named("alexnet")


def test_titles():
    assert layers.title(A) == "N32 C64 56x56"
    assert layers.title(ConvSpec(1, 3, 8, 9, 5)) == "N1 C3 K5 8x9"
    assert layers.title(ConvSpec(1, 8, 8, 8, 8, r=1, s=5)) == "N1 C8 8x8 1x5 st1_p1.1.1.1_d1_g1"


def test_pictures(tmp_path):
    pytest.importorskip("matplotlib")
    (tmp_path / "rows.json").write_text(as_json(canned()))
    assert main(["report", "conv", str(tmp_path / "rows.json"), "--out", str(tmp_path / "p")]) == 0
    names = sorted(path.name for path in (tmp_path / "p").iterdir())
    slug = "nvidia-h200-graph-l2-warm-epilogue-none"
    assert names == ["conv.md", f"roofline-{slug}.png", f"speedup-{slug}.png"]
    assert all(path.stat().st_size > 5000 for path in (tmp_path / "p").glob("*.png"))


def test_report_as_json(tmp_path, capsys):
    (tmp_path / "rows.csv").write_text(as_csv(canned()))
    assert main(["report", "conv", str(tmp_path / "rows.csv"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["means"][0]["against"] == FASTEST_CUDNN and not found["files"]


def test_nothing_to_draw(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    (tmp_path / "rows.json").write_text(as_json([refused(A, "FFT")]))
    assert main(["report", "conv", str(tmp_path / "rows.json"), "--out", str(tmp_path / "p")]) == 2
    assert "nothing to draw" in capsys.readouterr().err
