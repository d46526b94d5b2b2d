"""Rows of networks: files, comparisons, profiles and pictures, all from made-up rows."""

from __future__ import annotations

import json

import pytest

from tvm_winograd.bench.network.compare import Mean, markdown, means, ours, speedup, table
from tvm_winograd.bench.network.profile import RUNS, Launches, kernel_rows
from tvm_winograd.bench.network.rows import KERNELS, MODELS, KernelRow, Row, kernel_file
from tvm_winograd.cli import main
from tvm_winograd.errors import InputError
from tvm_winograd.measure.row_files import Store

TIMES = {  # provider -> (latency, interval) at batch 1, at 32
    "ours": ((0.5, 0.4), (2.0, 2.0)),
    "ours-kernels": ((1.0, 0.8), (2.2, 2.0)),
    "torch": ((2.0, 1.6), (4.0, 4.0)),
    "torch-graph": ((1.0, 0.8), (8.0, 8.0)),
}
MODULE = {
    "functions": [
        {"name": "winograd_a", "schedule": "winograd-f2-fused"},
        {"name": "winograd_a1", "schedule": "winograd-f4"},
        {"name": "max_pool2d", "schedule": "default-cuda"},
    ],
    "layers": [
        {"name": "layer1.0.conv1", "function": "winograd_a"},
        {"name": "layer1.0.conv2", "function": "winograd_a"},
        {"name": "layer2.0.conv2", "function": "winograd_a1"},
    ],
}
LAUNCHES = [
    Launches("winograd_a_kernel", 2 * RUNS, 50.0 * RUNS),
    Launches("winograd_a1_kernel", RUNS, 20.0 * RUNS),
    Launches("winograd_a1_kernel_1", RUNS, 25.0 * RUNS),
    Launches("max_pool2d_kernel", RUNS, 4.0 * RUNS),
    Launches("memset", RUNS, 1.0 * RUNS),
]


def timed(provider: str, batch: int, latency: float, interval: float, **values) -> Row:
    return Row(
        model="resnet18",
        batch=batch,
        provider=provider,
        status="ok",
        latency_ms=latency,
        latency_spread_ms=0.01,
        interval_ms=interval,
        interval_spread_ms=0.01,
        error=3e-7,
        error_limit=2e-6,
        memory_bytes=3 << 20,
        config="10 winograd-f4",
        gpu="NVIDIA H200",
        **values,
    )


def refused(provider: str) -> Row:
    return Row("resnet18", 1, provider, "refused", note="no database", gpu="NVIDIA H200")


def canned() -> list[Row]:
    rows = [
        timed(provider, batch, *times)
        for provider, both in TIMES.items()
        for batch, times in zip((1, 32), both, strict=True)
    ]
    return [*rows, refused("tvm-metaschedule")]


def shares() -> list[KernelRow]:
    shared = {"model": "resnet18", "batch": 32, "options": "", "gpu": "NVIDIA H200"}
    return kernel_rows(LAUNCHES, MODULE, **shared)


@pytest.mark.parametrize("form", ["json", "csv"])
def test_round_trip(form, tmp_path):
    for kind, rows in ((MODELS, canned()), (KERNELS, shares())):
        path = tmp_path / f"rows.{form}"
        path.write_text(kind.as_json(rows) if form == "json" else kind.as_csv(rows))
        assert kind.read(path) == rows


def test_a_row_replaces_that_of_the_same_network_provider_and_options(tmp_path):
    path = tmp_path / "model.json"
    Store(MODELS, [path]).add(canned())
    again = timed("ours", 1, 0.3, 0.3)
    other = timed("ours", 1, 0.6, 0.6, options="max-error=1e-06")
    store = Store(MODELS, [path])
    store.add([again])
    store.add([other])
    rows = MODELS.read(path)
    assert len(rows) == len(canned()) + 1 and {again, other} <= set(rows)


def test_a_profile_is_replaced_as_a_whole(tmp_path):
    path = kernel_file(tmp_path / "model.json")
    assert path.name == "model-kernels.json"
    Store(KERNELS, [path]).add(shares())
    Store(KERNELS, [path]).add(shares()[:2])
    assert KERNELS.read(path) == shares()[:2]


def test_impossible_rows(tmp_path):
    with pytest.raises(InputError, match="ok without a latency"):
        Row("resnet18", 1, "ours", "ok")
    with pytest.raises(InputError, match="great"):
        Row("resnet18", 1, "ours", "great")


def test_means():
    found = table(canned())
    named = found["NVIDIA H200", "resnet18", 1]
    assert ours(named).provider == "ours"
    assert speedup(named, named["torch"], "latency") == 4.0
    assert speedup(named, named["tvm-metaschedule"], "latency") is None
    got = {(m.other, m.measure): m for m in means(found)}
    assert got["torch", "latency"] == Mean(
        "NVIDIA H200", "torch", "latency", pytest.approx((4.0 * 2.0) ** 0.5), 2
    )
    assert got["torch-graph", "interval"].ratio == pytest.approx((2.0 * 4.0) ** 0.5)
    assert got["ours-kernels", "interval"].ratio == pytest.approx(2**0.5)
    assert ("ours", "latency") not in got and ("tvm-metaschedule", "latency") not in got


def test_ours_by_default_is_compared():
    asked = timed("ours", 1, 0.1, 0.1, options="algorithm=winograd-f4")
    named = table([asked, *canned()])["NVIDIA H200", "resnet18", 1]
    assert ours(named).options == ""
    assert ours({"ours-kernels": named["ours-kernels"]}).provider == "ours-kernels"
    assert ours({"torch": named["torch"]}) is None


def test_kernels_are_mapped_to_layers_and_schedules():
    rows = shares()
    assert [(r.kernel, r.schedule, r.layers, r.launches, r.us) for r in rows] == [
        ("winograd_a_kernel", "winograd-f2-fused", "layer1.0.conv1, layer1.0.conv2", 2.0, 50.0),
        ("winograd_a1_kernel_1", "winograd-f4", "layer2.0.conv2", 1.0, 25.0),
        ("winograd_a1_kernel", "winograd-f4", "layer2.0.conv2", 1.0, 20.0),
        ("max_pool2d_kernel", "default-cuda", "", 1.0, 4.0),
        ("memset", "", "", 1.0, 1.0),
    ]
    assert [r.percent for r in rows] == pytest.approx([50.0, 25.0, 20.0, 4.0, 1.0])


def test_tables():
    text = markdown(canned(), shares())
    lines = [line for line in text.splitlines() if line.startswith("| torch-graph")]
    assert [cell.strip() for cell in lines[0].split("|")[2:10]] == [
        "1.000", "0.010", "0.800", "0.010", "3.0", "3.0e-07", "2.00", "2.00",
    ]  # fmt: skip
    assert "refused: no database" in text
    assert "2.83" in text  # the mean over both batches
    assert "## Kernels of resnet18, batch 32, NVIDIA H200" in text
    assert "| 50.0 | 50.0 | 2        | winograd-f2-fused | winograd_a_kernel" in text


def test_many_kernels_end_in_one_line():
    many = [Launches(f"f{i}_kernel", RUNS, float(RUNS)) for i in range(40)]
    rows = kernel_rows(many, MODULE, model="m", batch=1, options="")
    assert "25 more" in markdown([], rows)


def test_report_and_pictures(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    path = tmp_path / "model.json"
    path.write_text(MODELS.as_json(canned()))
    kernel_file(path).write_text(KERNELS.as_json(shares()))
    assert main(["report", "model", str(path), "--out", str(tmp_path / "p")]) == 0
    names = sorted(p.name for p in (tmp_path / "p").iterdir())
    assert names == [
        "kernels-resnet18-batch-32-nvidia-h200.png",
        "model.md",
        "speedup-interval-nvidia-h200.png",
        "speedup-latency-nvidia-h200.png",
    ]
    assert all(p.stat().st_size > 5000 for p in (tmp_path / "p").glob("*.png"))
    capsys.readouterr()
    assert main(["report", "model", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["means"]
    assert found[0]["other"] == "ours-kernels" and found[0]["networks"] == 2


def test_nothing_to_draw(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    path = tmp_path / "model.json"
    path.write_text(MODELS.as_json([refused("torch")]))
    assert main(["report", "model", str(path), "--out", str(tmp_path / "p")]) == 2
    assert "nothing to draw" in capsys.readouterr().err
