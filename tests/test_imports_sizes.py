"""Sizes that a file leaves open beside the batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

import tvm_winograd
from tvm_winograd.cli import main
from tvm_winograd.errors import ModelError
from tvm_winograd.frontend import load_model
from tvm_winograd.truth.evaluate import evaluate


def onnx_file(path: Path, *dims) -> Path:
    graph = helper.make_graph(
        [helper.make_node("Relu", ["images"], ["y"])],
        "g",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, list(dims))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, list(dims))],
    )
    imports = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=8), path)
    return path


@pytest.mark.parametrize(
    "given", [{"images": (1, 3, 6, 8)}, {"height": 6, "width": 8}, {"images": [2, 3, 6, 8]}]
)
def test_onnx(given, tmp_path: Path) -> None:
    path = onnx_file(tmp_path / "m.onnx", "batch", 3, "height", "width")
    model = load_model(path, input_shapes=given)
    assert model.inputs[0].shape[1:] == (3, 6, 8)
    assert load_model(path, batch=4, input_shapes=given).inputs[0].shape == (4, 3, 6, 8)
    assert model.at_batch(5).inputs[0].shape == (5, 3, 6, 8)


@pytest.mark.parametrize("batch", [0, -1])
def test_a_declared_batch_of_0_or_less_is_open(batch: int, tmp_path: Path) -> None:
    path = onnx_file(tmp_path / "m.onnx", batch, 3, 6, 8)
    assert load_model(path).inputs[0].shape == (1, 3, 6, 8)
    assert load_model(path, batch=4).inputs[0].shape == (4, 3, 6, 8)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, r"dynamic size height on axis 2.*--input-shape images=1xNxNxN or height=N"),
        ({"height": 6}, "dynamic size width on axis 3"),
        ({"images": (1, 4, 6, 8)}, "fixed size 3 on axis 1, but 4 is given"),
        ({"images": (3, 6, 8)}, "4 axes, but a shape of 3"),
        ({"height": 6, "width": 8, "depth": 2}, "depth: the model's inputs and dynamic sizes are"),
    ],
)
def test_what_does_not_fit(given, words, tmp_path: Path) -> None:
    path = onnx_file(tmp_path / "m.onnx", "batch", 3, "height", "width")
    with pytest.raises(ModelError, match=words):
        load_model(path, input_shapes=given)


def test_torch(tmp_path: Path) -> None:
    class Net(torch.nn.Module):
        def forward(self, x):
            n, c, h, w = x.shape
            return torch.nn.functional.interpolate(x, (h * 2, w * 2)).reshape(n, c * h, -1)

    dims = {"x": {0: torch.export.Dim("b"), 2: torch.export.Dim("h", max=64)}}
    program = torch.export.export(Net(), (torch.randn(2, 3, 5, 4),), dynamic_shapes=dims)
    model = load_model(program, input_shapes={"x": (1, 3, 7, 4)})
    x = np.random.default_rng(0).standard_normal((1, 3, 7, 4)).astype("float32")
    (got,) = evaluate(model.mod, model.params, [x])
    assert np.array_equal(got.astype("float32"), Net()(torch.from_numpy(x)).numpy())
    with pytest.raises(ModelError, match="only the batch"):
        load_model(program)
    with pytest.raises(ModelError, match="at most 64"):
        load_model(program, input_shapes={"x": (1, 3, 65, 4)})


def test_the_command_line_and_verify(tmp_path: Path) -> None:
    path = str(onnx_file(tmp_path / "m.onnx", "batch", 3, "height", "width"))
    made = str(tmp_path / "a")
    assert main(["compile", path, "-o", made]) == 2
    for wrong in ("images", "images=1x3", "images=1x3x0x8", "=3", "images=axb"):
        assert main(["compile", path, "-o", made, "--input-shape", wrong]) == 2
    assert main(["compile", path, "-o", made, "--input-shape", "images=1x3x6x8"]) == 0
    manifest = tvm_winograd.codegen.artifact.read_manifest(made)
    assert manifest["model"]["input_shapes"] == {"images": [1, 3, 6, 8]}
    assert main(["verify", made, "--model", path]) == 0
    with pytest.raises(ModelError, match="no dynamic size"):
        load_model("resnet18", input_shapes={"x": (1,)})
