"""Model files: odd but valid ONNX graphs, and what is refused with which words."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from test_frontend import output

from tvm_winograd.errors import ModelError
from tvm_winograd.frontend import load_model


@pytest.mark.parametrize(
    ("name", "words"),
    [("resnet19", "resnet152"), ("net.h5", ".pt2"), ("absent.onnx", "does not exist")],
)
def test_unknown_models(name: str, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        load_model(name)
    with pytest.raises(ModelError, match="positive"):
        load_model("resnet18", batch=0)
    with pytest.raises(ModelError, match="int is no model"):
        load_model(18)


@pytest.mark.parametrize("name", ["bad.onnx", "bad.pt2"])
@pytest.mark.parametrize("content", [b"", b"hello, I am no model", bytes(range(256)) * 9])
def test_corrupt_files(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ModelError, match=name):
        load_model(path)


def save_onnx(path: Path, nodes: list, arrays: dict, shape, kind=TensorProto.FLOAT, opset=17):
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", kind, shape)],
        [helper.make_tensor_value_info("y", kind, None)],
        [numpy_helper.from_array(a, n) for n, a in arrays.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.save(model, path)
    return path


def test_onnx_shape_arithmetic_pads_sum_and_auto_pad(tmp_path: Path) -> None:
    """What TVM's importer alone takes badly: a Reshape and pads computed from a shape, a Sum,
    SAME padding, a Clip."""
    node = helper.make_node
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "zero"], ["n"]),
        node("Concat", ["n", "minus"], ["flat"], axis=0),
        node("Mul", ["ones8", "n"], ["pads0"]),
        node("Mul", ["pads0", "mask"], ["pads"]),
        node("Pad", ["x", "pads"], ["padded"]),
        node("Conv", ["padded", "w", "b"], ["c"], auto_pad="SAME_UPPER", strides=[2, 2]),
        node("Sum", ["c", "c", "c"], ["s"]),
        node("Clip", ["s", "low"], ["above"]),
        node("Clip", ["above", "zero32", "six"], ["clipped"]),
        node("Reshape", ["clipped", "flat"], ["y"]),
    ]
    arrays = {
        "zero": np.array([0]), "minus": np.array([-1]), "ones8": np.ones(8, np.int64),
        "mask": np.array([0, 0, 1, 0, 0, 0, 0, 1]), "low": np.float32(-0.5),
        "zero32": np.float32(0), "six": np.float32(6),
        "w": np.random.default_rng(0).standard_normal((5, 3, 3, 3)).astype("float32"),
        "b": np.arange(5, dtype="float32"),
    }  # fmt: skip
    path = save_onnx(tmp_path / "net.onnx", nodes, arrays, ["N", 3, 7, 8])
    model = load_model(path, batch=2)
    assert list(model.params) == ["w", "b"]
    assert "call_tir" not in model.mod.script()
    x = np.random.default_rng(1).standard_normal((2, 3, 7, 8)).astype("float32")
    # pads: batch rows above, batch columns right -> 9 x 10; SAME at stride 2 adds (1, 1), (0, 1)
    data = torch.nn.functional.pad(torch.from_numpy(x).double(), (0, 2, 2, 0))
    data = torch.nn.functional.pad(data, (0, 1, 1, 1))
    w, b = (torch.from_numpy(arrays[n]).double() for n in "wb")
    want = (3 * torch.nn.functional.conv2d(data, w, b, stride=2)).clip(0, 6).reshape(2, -1)
    np.testing.assert_allclose(output(model, x), want.numpy(), rtol=1e-12)


def test_onnx_refusals(tmp_path: Path) -> None:
    relu = helper.make_node("Relu", ["x"], ["y"], "act")
    file = tmp_path / "net.onnx"
    det = helper.make_node("Det", ["x"], ["y"], "determinant")
    with pytest.raises(ModelError, match=r"Det \(node 'determinant'\)"):
        load_model(save_onnx(file, [det], {}, [1, 3, 3]))
    foreign = helper.make_node("Fancy", ["x"], ["y"], "f", domain="com.example")
    with pytest.raises(ModelError, match=r"com\.example::Fancy"):
        load_model(save_onnx(file, [foreign], {}, [1, 3]))
    with pytest.raises(ModelError, match=r"float16.*float32"):
        load_model(save_onnx(file, [relu], {}, [1, 3], TensorProto.FLOAT16))
    with pytest.raises(ModelError, match="dynamic size H on axis 2"):
        load_model(save_onnx(file, [relu], {}, [1, 3, "H", 8]))
    fixed = helper.make_node("Reshape", ["x", "s"], ["y"])
    path = save_onnx(file, [fixed], {"s": np.array([1, 12])}, [1, 3, 4])
    assert load_model(path).batch == 1
    with pytest.raises(ModelError, match="fixes its batch"):
        load_model(path, batch=2)


def test_torch_refusals() -> None:
    def exported(net: torch.nn.Module, *shape: int, dtype=torch.float32, **options):
        return torch.export.export(net, (torch.zeros(shape, dtype=dtype),), **options)

    norm = torch.nn.BatchNorm2d(3)
    with pytest.raises(ModelError, match=r"\.eval\(\)"):
        load_model(exported(norm.train(), 2, 3, 4, 4))
    fixed = exported(norm.eval(), 2, 3, 4, 4)
    assert load_model(fixed, batch=2).batch == 2
    with pytest.raises(ModelError, match="fixed batch 2"):
        load_model(fixed, batch=1)
    with pytest.raises(ModelError, match="float16"):
        load_model(exported(torch.nn.ReLU(), 2, 3, dtype=torch.float16))
    dims = {"input": {2: torch.export.Dim("height")}}
    with pytest.raises(ModelError, match="only the batch"):
        load_model(exported(torch.nn.ReLU(), 2, 3, 5, 5, dynamic_shapes=dims))
