"""`bench model` with every provider on this machine's GPU.

Nothing here depends on how long anything takes: other tests may use the GPU at the same time.
"""

from __future__ import annotations

import pytest

from tvm_winograd.bench.network.rows import KERNELS, MODELS
from tvm_winograd.cli import main
from tvm_winograd.truth import peers

pytestmark = pytest.mark.gpu
NAMES = {"ours", "ours-kernels", "tvm-dlight"}
TORCH = {"torch", "torch-graph", "torch-compile", "torch-compile-tf32"}


def test_every_provider(tmp_path, capsys):
    torch_too = peers.has_torch_cuda()
    names = NAMES | TORCH if torch_too else NAMES
    command = ["bench", "model", "resnet18", "--batch", "2", "--out", str(tmp_path)]
    command += ["--providers", ",".join(sorted(names)), "--pictures", str(tmp_path / "p")]
    assert main([*command, "--profile"] if torch_too else command) == 0
    rows = MODELS.read(tmp_path / "model.json")
    assert MODELS.read(tmp_path / "model.csv") == rows
    assert {row.provider for row in rows} == names
    assert [(row.provider, row.note) for row in rows if row.status != "ok"] == []
    for row in rows:
        assert row.latency_ms > 0 and row.interval_ms > 0
        limit = 0.1 if row.math == "tf32" else 1e-4
        assert row.error <= row.error_limit < limit and row.memory_bytes > 2**20
    if torch_too:
        kernels = KERNELS.read(tmp_path / "model-kernels.json")
        assert sum(k.percent for k in kernels) == pytest.approx(100)
        of_layers = [k for k in kernels if k.layers]
        assert len({name for k in of_layers for name in k.layers.split(", ")}) == 20
        assert all(k.schedule and k.launches >= 1 and k.us > 0 for k in of_layers)
    assert "ours is faster by" in capsys.readouterr().out
    assert list((tmp_path / "p").glob("*.png"))
