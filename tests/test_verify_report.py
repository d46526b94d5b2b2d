"""What `verify` says: the ratio it judges by, the model it asks for, an artifact not there."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from tvm_winograd import ConvSpec
from tvm_winograd.check.report import Report
from tvm_winograd.check.verify import load_source
from tvm_winograd.cli import main
from tvm_winograd.errors import ModelError
from tvm_winograd.truth.tolerances import NETWORK_FLOOR, long_sums, tolerance


@pytest.mark.parametrize(
    ("error", "peer", "ratio"),
    [(3e-6, 2e-6, 1.5), (3e-6, 1e-6, 3.0), (1.5 * NETWORK_FLOOR, 1e-9, 1.5), (0.0, 0.0, 0.0)],
)
def test_the_ratio_shown_is_the_one_that_is_judged(error, peer, ratio) -> None:
    report = Report("cpu", error, "direct", peer, ratio_limit=2.0)
    assert report.as_dict()["ratio"] == pytest.approx(ratio)
    assert report.ok == (ratio <= 2.0)


def test_a_model_imported_wrongly_is_not_ok() -> None:
    right = Report("cpu", 1e-7, "direct", 1e-6, ratio_limit=2.0, imported=1e-6)
    assert right.ok and not replace(right, imported=1e-3).ok
    assert not replace(right, peer_error=0.0, imported=1e-4).ok


def test_a_file_model_is_asked_for_by_its_name() -> None:
    source = {"kind": "onnx", "file": "net.onnx", "sha256": "0" * 64, "batch": 1}
    artifact = SimpleNamespace(manifest={"model": source, "inputs": [{"shape": [1, 3, 8, 8]}]})
    with pytest.raises(ModelError, match=r"made from net\.onnx \(onnx\); give that model"):
        load_source(artifact)  # type: ignore[arg-type]


def test_no_artifact_where_a_model_is_named(tmp_path, capsys) -> None:
    assert main(["verify", str(tmp_path / "none"), "--model", "net.onnx"]) == 2
    assert "there is no artifact" in capsys.readouterr().err


def test_a_long_running_sum_may_err_as_its_convolution_may() -> None:
    long, short = ConvSpec(1, 8, 40, 40, 16, 33, 33), ConvSpec(1, 8, 40, 40, 16)
    granted = long_sums([(long, "direct"), (short, "direct"), (long, "gemm")])
    assert granted == tolerance(long, "direct") and long_sums([(short, "direct")]) == 0
    report = Report("cpu", 1.4e-6, "direct", 3.1e-7, ratio_limit=2.0, granted=granted)
    assert report.ok and report.ratio > 2
    assert not Report("cpu", 2.1e-6, "direct", 3.1e-7, ratio_limit=2.0, granted=granted).ok
