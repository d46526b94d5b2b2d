"""Integer and boolean outputs."""

from __future__ import annotations

import numpy as np
import torch
from torch_functions import exported

import tvm_winograd
from tvm_winograd.check.verify import verify
from tvm_winograd.frontend import load_model

W = torch.randn(5, 3, 3, 3, generator=torch.Generator().manual_seed(0))
X = torch.randn(2, 3, 9, 8, generator=torch.Generator().manual_seed(1))


def outputs(x: torch.Tensor):
    y = torch.conv2d(x, W, padding=1)
    return y.argmax(1), y > 0, (y * 10).int(), y


def test_integers_and_truth_values_come_out(tmp_path) -> None:
    model = load_model(exported(outputs, X))
    assert [t.dtype for t in model.outputs] == ["int64", "bool", "int32", "float32"]
    made = tvm_winograd.compile(model, output=tmp_path / "a")
    got = tvm_winograd.load(tmp_path / "a").run(X.numpy())
    for have, want in zip(got[:3], outputs(X)[:3], strict=True):
        assert have.dtype == want.numpy().dtype and np.mean(have != want.numpy()) < 0.005
    assert verify(made, model).ok


def test_wrong_integers_fail() -> None:
    model = load_model(exported(lambda x: torch.conv2d(x, W).argmax(1), X))
    made = tvm_winograd.compile(model)
    object.__setattr__(model, "original", lambda x: [np.zeros(model.outputs[0].shape, "int64")])
    assert verify(made, model).verdict == "failed"
