"""Integers and truth values as inputs and outputs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch_functions import exported

import tvm_winograd
from tvm_winograd.check.verify import verify
from tvm_winograd.errors import ModelError
from tvm_winograd.frontend import load_model
from tvm_winograd.truth.reference import relative_error

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


class FromBytes(torch.nn.Module):
    """Bytes of an image, indices of channels, a mask."""

    def forward(self, image, chosen, mask):
        y = torch.conv2d(image.permute(0, 3, 1, 2).float() / 255 - 0.5, W, padding=1)
        y = torch.where(mask[:, None], y, torch.zeros(()))
        return y[:, chosen], y.sum((2, 3))


def bytes_and_indices() -> tuple[torch.Tensor, ...]:
    draw = torch.Generator().manual_seed(2)
    image = torch.randint(0, 256, (2, 9, 8, 3), dtype=torch.uint8, generator=draw)
    mask = torch.randint(0, 2, (2, 9, 8), generator=draw).bool()
    return image, torch.tensor([1, -1, 0]), mask


@pytest.mark.parametrize("form", ["pt2", "onnx"])
def test_integers_go_in(form, tmp_path) -> None:
    inputs = bytes_and_indices()
    model = torch.export.export(FromBytes(), inputs)
    if form == "onnx":
        model = tmp_path / "m.onnx"
        torch.onnx.export(FromBytes(), inputs, model, dynamo=False)
    loaded = load_model(model)
    assert [t.dtype for t in loaded.inputs] == ["uint8", "int64", "bool"]
    made = tvm_winograd.compile(loaded, output=tmp_path / "a")
    got = tvm_winograd.load(made.path).run(*(t.numpy() for t in inputs))
    for have, want in zip(got, FromBytes()(*inputs), strict=True):
        assert relative_error(have, want.numpy()) < 1e-6
    assert verify(made, loaded).ok


def test_an_index_outside_reads_nothing_outside() -> None:
    """torch raises; compiled code takes the nearest element instead."""
    image, _, mask = bytes_and_indices()
    made = tvm_winograd.compile(torch.export.export(FromBytes(), bytes_and_indices()))
    run = tvm_winograd.load(made.path).run
    far, near = (
        run(image.numpy(), np.array(index), mask.numpy())[0]
        for index in ([10**9, -(10**9), 2], [4, 0, 2])
    )
    assert np.array_equal(far, near)


def test_other_dtypes_are_refused() -> None:
    program = torch.export.export(FromBytes(), bytes_and_indices())
    half = torch.export.export(torch.nn.ReLU(), (torch.zeros(2, 3).half(),))
    assert load_model(program).inputs
    with pytest.raises(ModelError, match="input 'input' is float16; supported are float32, int32"):
        load_model(half)


def test_a_number_outside_of_a_dtype_is_refused_by_name() -> None:
    program = exported(lambda x: x > -1, torch.zeros(2, 3, dtype=torch.uint8))
    with pytest.raises(ModelError, match=r"gt.* \(node 'gt'\)"):
        load_model(program)
