"""`bench conv` with every provider on this machine's GPU, which other tests may use meanwhile."""

from __future__ import annotations

import pytest

from tvm_winograd.bench.conv.rows import read
from tvm_winograd.cli import main
from tvm_winograd.measure.cudnn_library import ALGORITHMS
from tvm_winograd.shapes import ConvSpec

pytestmark = pytest.mark.gpu
SPEC = ConvSpec(n=2, c=64, h=14, w=14, k=64)


@pytest.mark.parametrize("epilogue", ["none", "bias+residual+relu"])
def test_every_provider(epilogue, tmp_path, capsys):
    command = ["bench", "conv", SPEC.key(), "--epilogue", epilogue, "--out", str(tmp_path)]
    assert main(command) == 0
    rows = read(tmp_path / "conv.json")
    assert read(tmp_path / "conv.csv") == rows
    timed = {row.name for row in rows if row.status == "ok"}
    assert {"ours best", "ours default", "ours winograd-f2", "tvm-dlight"} <= timed
    for name in ("ours best", "tvm-dlight"):
        mine = [row for row in rows if row.name == name]
        assert {(row.mode, row.l2) for row in mine} == {
            (mode, l2) for mode in ("graph", "back_to_back") for l2 in ("warm", "cold")
        }
        assert all(row.us and row.us > 0 for row in mine)
    providers = {row.provider for row in rows}
    if "cudnn" in providers:
        assert {row.variant for row in rows if row.provider == "cudnn"} == set(ALGORITHMS)
        assert "cudnn IMPLICIT_PRECOMP_GEMM" in timed
    if "torch" in providers:
        assert "torch conv2d" in timed
    assert not [row for row in rows if row.status == "wrong"]
    assert "ours is faster by" in capsys.readouterr().out
