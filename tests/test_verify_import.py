"""`verify` beside the model's own framework: what TVM's importers misread silently is noticed."""

from __future__ import annotations

import sys

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

import tvm_winograd
from tvm_winograd.check.verify import verify, verify_buckets
from tvm_winograd.cli import main
from tvm_winograd.frontend import load_model, torch_import
from tvm_winograd.truth.numpy_ops import OPS


class Net(nn.Module):
    """Two inputs, one of them by name, two outputs, in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 5, 3, padding=1)

    def forward(self, x: torch.Tensor, *, y: torch.Tensor) -> dict[str, torch.Tensor]:
        z = nn.functional.selu(self.conv(x))
        return {"sum": torch.add(z, y, alpha=0.5), "mean": z.mean((2, 3))}


def exported(**options) -> torch.export.ExportedProgram:
    torch.manual_seed(0)
    x, y = torch.randn(2, 3, 8, 9), torch.randn(2, 5, 8, 9)
    return torch.export.export(Net().eval(), (x,), {"y": y}, **options)


def test_torch_agrees() -> None:
    model = load_model(exported())
    report = verify(tvm_winograd.compile(model), model)
    assert report.ok and 0 < report.imported < 1e-6


def test_what_is_misread_is_noticed(monkeypatch) -> None:
    monkeypatch.setattr(torch_import, "convert_map", dict)  # TVM's importer alone
    model = load_model(exported())
    report = verify(tvm_winograd.compile(model), model)
    assert not report.ok and report.imported > 0.01


def test_every_bucket_is_compared() -> None:
    batch = torch.export.Dim("batch", min=1, max=4)
    program = exported(dynamic_shapes={"x": {0: batch}, "y": {0: batch}})
    model = load_model(program, batch=3)
    made = tvm_winograd.compile(program, batch=(1, 3), buckets=[2, 3])
    assert all(r.ok and r.imported is not None for r in verify_buckets(made, model))


@pytest.fixture
def onnx_file(tmp_path):
    """A convolution and a node of `name`, in a file."""

    def write(name: str, opset: int = 17, weights: tuple = (), **attributes):
        w = np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype("float32")
        nodes = [
            helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
            helper.make_node(name, ["c", *map(str, range(len(weights)))], ["y"], **attributes),
        ]
        ends = [
            [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape)]
            for n, shape in (("x", ["N", 3, 8, 9]), ("y", None))
        ]
        arrays = {"w": w, **{str(i): array for i, array in enumerate(weights)}}
        tensors = [numpy_helper.from_array(a, n) for n, a in arrays.items()]
        graph = helper.make_graph(nodes, "g", *ends, tensors)
        path = tmp_path / "net.onnx"
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)]), path)
        return path

    return write


def test_onnx_agrees_on_the_command_line(onnx_file, tmp_path, capsys) -> None:
    path = str(onnx_file("LeakyRelu", alpha=0.25))
    assert main(["compile", path, "-o", str(tmp_path / "a"), "--batch", "2"]) == 0
    assert main(["verify", str(tmp_path / "a"), "--model", path]) == 0
    assert "its own framework: " in capsys.readouterr().out


NORM = tuple(np.array([1, 2, 3, n], "float32") for n in range(1, 5))


@pytest.mark.parametrize(
    ("name", "opset", "options"),
    [
        ("BatchNormalization", 7, {"weights": NORM}),
        ("BatchNormalization", 11, {"weights": NORM}),
        ("BatchNormalization", 13, {"weights": NORM}),
        ("LRN", 17, {"size": 3, "alpha": 0.1}),
        ("Softmax", 11, {}),
        ("LogSoftmax", 11, {"axis": -1}),
        ("Softmax", 13, {}),
    ],
)
def test_what_the_framework_computes_wrongly(name, opset, options, onnx_file) -> None:
    model = load_model(onnx_file(name, opset, **options))
    report = verify(tvm_winograd.compile(model), model)
    assert report.ok and report.imported < 1e-6


def test_a_resize_to_many_pixels() -> None:
    """float32 knows the place of a pixel less well the farther it is."""
    up = nn.Upsample(size=(321, 321), mode="bilinear")
    model = load_model(torch.export.export(up, (torch.randn(1, 2, 28, 28),)))
    assert verify(tvm_winograd.compile(model), model).ok


def test_what_the_framework_cannot_run_is_said(onnx_file, monkeypatch) -> None:
    import onnx.reference

    def refuse(self, *args):
        raise NotImplementedError("no such operator")

    monkeypatch.setattr(onnx.reference.ReferenceEvaluator, "run", refuse)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    path = str(onnx_file("LeakyRelu"))
    model = load_model(path)
    report = verify(tvm_winograd.compile(model), model)
    assert report.verdict == "not compared" and not report.ok and report.imported is None
    assert "no such operator" in report.not_compared[0]
    assert main(["verify", path]) == 1
    assert main(["verify", path, "--allow-uncompared"]) == 0


def test_what_the_interpreter_cannot_evaluate_is_said(onnx_file, monkeypatch) -> None:
    monkeypatch.delitem(OPS, "relax.nn.leakyrelu")
    model = load_model(onnx_file("LeakyRelu"))
    report = verify(tvm_winograd.compile(model), model)
    assert report.verdict == "not compared" and "leakyrelu" in report.not_compared[-1]
    object.__setattr__(model, "original", lambda x: [np.ones(model.outputs[0].shape)])
    assert verify(tvm_winograd.compile(model), model).verdict == "failed"


def test_onnxruntime_is_asked_first(onnx_file, monkeypatch) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    asked = []
    original = onnxruntime.InferenceSession.run
    monkeypatch.setattr(
        onnxruntime.InferenceSession, "run", lambda *a: asked.append(1) or original(*a)
    )
    model = load_model(onnx_file("LeakyRelu"))
    assert verify(tvm_winograd.compile(model), model).ok and asked == [1]
