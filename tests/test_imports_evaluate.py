"""Operators that the float64 interpreter has learned, beside torch or onnxruntime."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from onnx import TensorProto, helper, numpy_helper
from torch_functions import exported

from tvm_winograd.frontend import load_model
from tvm_winograd.truth.evaluate import evaluate

X = torch.randn(2, 4, 9, 8, generator=torch.Generator().manual_seed(0))
W1 = torch.randn(6, 2, 3, generator=torch.Generator().manual_seed(1))
W3 = torch.randn(3, 1, 2, 3, 2, generator=torch.Generator().manual_seed(2))
TORCH = {
    "conv1d": lambda x: F.conv1d(x[:, :, 0], W1, stride=2, padding=1, groups=2),
    "conv1d dilated": lambda x: F.conv1d(x[:, :, 0], W1, dilation=2, groups=2),
    "conv3d": lambda x: F.conv3d(x[:, None], W3, stride=(1, 2, 1), padding=(1, 0, 1)),
    "pools": lambda x: F.max_pool1d(x[:, :, 0], 3, 2) + F.avg_pool1d(x[:, :, 1], 3, 2),
    "adaptive": lambda x: F.adaptive_avg_pool2d(x, (4, 3)),
    "adaptive 1d": lambda x: F.adaptive_avg_pool1d(x[:, :, 0], 5),
    "triangles": lambda x: x.tril(1) + x.triu(-1),
    "softplus": lambda x: F.softplus(x * 10, 2.0, 5.0),
    "trigonometry": lambda x: torch.atan2(x.sin(), x.cosh()) + (x / 9).asin() + x.trunc(),
    "integers": lambda x: (((x * 9).int() // 4) & 3).float(),
    "error function": lambda x: torch.erf(x * 3),
}


@pytest.mark.parametrize("name", TORCH)
def test_as_torch(name: str) -> None:
    model = load_model(exported(TORCH[name], X))
    (got,) = evaluate(model.mod, model.params, [X.numpy()])
    want = TORCH[name](X.double() if "conv" not in name else X)
    assert np.allclose(got, want.numpy(), rtol=1e-5, atol=1e-5)


ROIS = np.array([[0, 0, 7, 8], [1.5, 2, 5, 6.5], [-2, -1, 3, 3], [4, 4, 4.2, 4.2]], "float32")
ONNX = {
    "RoiAlign": (
        helper.make_node("RoiAlign", ["x", "r", "b"], ["y"], output_height=3, output_width=2),
        {"r": ROIS, "b": np.array([0, 1, 0, 1])},
    ),
    "RoiAlign scaled": (
        helper.make_node(
            "RoiAlign", ["x", "r", "b"], ["y"], output_height=3, output_width=2, spatial_scale=0.25,
        ),
        {"r": ROIS * 4, "b": np.array([0, 1, 0, 1])},
    ),
    "RoiAlign of a ratio": (
        helper.make_node(
            "RoiAlign", ["x", "r", "b"], ["y"], output_height=2, output_width=2, sampling_ratio=2,
            spatial_scale=0.5, coordinate_transformation_mode="output_half_pixel",
        ),
        {"r": ROIS * 2, "b": np.array([0, 1, 0, 1])},
    ),
    "GatherND": (
        helper.make_node("GatherND", ["x", "i"], ["y"], batch_dims=1),
        {"i": np.array([[[0, 1], [3, -1]], [[1, 0], [2, 2]]])},
    ),
    "ScatterND": (
        helper.make_node("ScatterND", ["x", "i", "u"], ["y"], reduction="add"),
        {"i": np.array([[0, 1], [0, 1], [1, 3]]), "u": np.ones((3, 9, 8), "float32")},
    ),
    "GatherElements": (
        helper.make_node("GatherElements", ["x", "i"], ["y"], axis=2),
        {"i": np.full((2, 4, 3, 8), -2)},
    ),
    "loops": (helper.make_node("Trilu", ["x"], ["y"], upper=1), {}),
}  # fmt: skip


@pytest.mark.parametrize("name", ONNX)
def test_as_onnxruntime(name: str, tmp_path) -> None:
    pytest.importorskip("onnxruntime")
    node, arrays = ONNX[name]
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, list(X.shape))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(a, n) for n, a in arrays.items()],
    )
    path = tmp_path / "m.onnx"
    imports = [helper.make_opsetid("", 16)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=8), path)
    model = load_model(path)
    (want,) = model.original([X.numpy()])
    (got,) = evaluate(model.mod, model.params, [X.numpy()])
    assert got.shape == want.shape and np.allclose(got, want, rtol=1e-5, atol=1e-5)
