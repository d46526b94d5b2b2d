"""TopK, sort and running sums, in both importers."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper
from torch_functions import exported

import tvm_winograd
from tvm_winograd.check.verify import verify
from tvm_winograd.errors import ModelError
from tvm_winograd.frontend import load_model
from tvm_winograd.te.sorting import LONGEST

X = torch.randn(3, 7, 5, generator=torch.Generator().manual_seed(4))
EQUAL = X.round()  # many of one value

FUNCTIONS = {
    "topk": lambda x: x.topk(3, 1),
    "smallest": lambda x: x.topk(2, -1, largest=False),
    "sort": lambda x: x.sort(1, descending=True),
    "stable": lambda x: torch.sort(x, stable=True, dim=0),
    "argsort": lambda x: torch.argsort(x, dim=1, stable=True),
    "cumsum": lambda x: (x.cumsum(1), x.int().cumsum(-1)),
}


@pytest.mark.parametrize("x", [X, EQUAL], ids=["", "equal"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_as_torch_computes_it(name, x) -> None:
    if x is EQUAL and name not in ("stable", "argsort", "cumsum"):
        pytest.skip("torch leaves the order of equal elements open")
    want = FUNCTIONS[name](x)
    want = [want] if isinstance(want, torch.Tensor) else list(want)
    got = tvm_winograd.compile(exported(FUNCTIONS[name], x)).run(x.numpy())
    for have, asked in zip(got if isinstance(got, tuple) else [got], want, strict=True):
        assert have.dtype == asked.numpy().dtype
        assert np.allclose(have, asked.numpy(), atol=1e-6)


def test_nan_counts_as_the_largest() -> None:
    x = X.clone()
    x[0, 2, 1] = x[0, 5, 1] = torch.nan
    x[0, 3, 1] = torch.inf
    got = tvm_winograd.compile(exported(FUNCTIONS["topk"], x)).run(x.numpy())
    values, indices = FUNCTIONS["topk"](x)
    assert np.array_equal(got[0], values.numpy(), equal_nan=True)
    assert got[1][0, :, 1].tolist() == [2, 5, 3] and indices.shape == got[1].shape


def onnx_model(path, node, outputs, **constants):
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, X.shape)],
        [helper.make_tensor_value_info(n, t, None) for n, t in outputs.items()],
        [numpy_helper.from_array(np.array(v, "int64"), n) for n, v in constants.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


@pytest.mark.parametrize("flags", [{}, {"exclusive": 1}, {"reverse": 1, "exclusive": 1}])
def test_onnx_running_sum(flags, tmp_path) -> None:
    node = helper.make_node("CumSum", ["x", "axis"], ["y"], **flags)
    path = onnx_model(tmp_path / "m.onnx", node, {"y": 1}, axis=-2)
    model = load_model(path)
    made = tvm_winograd.compile(model)
    assert verify(made, model).ok  # by onnx's own evaluator too


def test_onnx_top_k(tmp_path) -> None:
    node = helper.make_node("TopK", ["x", "k"], ["y", "i"], axis=1, largest=0)
    path = onnx_model(tmp_path / "m.onnx", node, {"y": 1, "i": 7}, k=[4])
    values, indices = tvm_winograd.compile(path).run(X.numpy())
    want = X.topk(4, 1, largest=False)
    assert np.array_equal(values, want[0].numpy()) and np.array_equal(indices, want[1].numpy())


def test_cuda(tmp_path) -> None:
    made = tvm_winograd.compile(
        exported(lambda x: (x.topk(3, 1), x.cumsum(1)), X), target="cuda", arch="sm_90", ptx=False
    )
    names = {f["name"] for f in made.manifest["modules"][0]["functions"]}
    assert {"ranks", "order", "running_sum"} <= names


def test_too_long() -> None:
    x = torch.zeros(1, LONGEST + 1)
    with pytest.raises(ModelError, match=rf"topk.*its axis has {LONGEST + 1} elements; at most"):
        load_model(exported(lambda x: x.topk(2, 1)[0], x))
