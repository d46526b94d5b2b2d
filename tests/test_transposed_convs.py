"""Transposed convolutions as convolutions of phases: the same function, fused and verified."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tvm_winograd
from tvm_winograd.check.verify import verify
from tvm_winograd.frontend import load_model
from tvm_winograd.passes.transposed_convs import transposed_convs
from tvm_winograd.truth.evaluate import evaluate
from tvm_winograd.truth.reference import relative_error

X = torch.randn(2, 4, 6, 7, generator=torch.Generator().manual_seed(0))
# window, stride, padding, output_padding, groups
CASES = {
    "2x2/2": (2, 2, 0, 0, 1),
    "4x4/2 cut": (4, 2, 1, 0, 1),
    "3x3/2 and one more": (3, 2, 1, 1, 1),
    "3x3/1": (3, 1, 1, 0, 1),
    "1x1/3 with gaps": (1, 3, 0, 2, 1),
    "5x5/3, cut by more than a stride": (5, 3, 4, 1, 2),
    "unequal": ((4, 3), (3, 1), (2, 0), (1, 0), 2),
    "depthwise": (4, 2, 1, 0, 4),
}


class Net(torch.nn.Module):
    def __init__(self, window, stride, padding, more, groups) -> None:
        super().__init__()
        torch.manual_seed(1)
        how = {"padding": padding, "output_padding": more, "groups": groups}
        self.up = torch.nn.ConvTranspose2d(4, 8, window, stride, **how)

    def forward(self, x):
        return torch.relu(self.up(x))


def program(case: str):
    return torch.export.export(Net(*CASES[case]).eval(), (X,))


@pytest.mark.parametrize("case", CASES)
def test_the_same_function(case) -> None:
    model = load_model(program(case))
    mod, params = transposed_convs(model.mod, model.params)
    assert "conv2d_transpose" in model.mod.script() and "conv2d_transpose" not in mod.script()
    (got,), (want,) = (
        evaluate(m, p, [X.numpy()]) for m, p in ((mod, params), (model.mod, model.params))
    )
    assert got.shape == want.shape and np.abs(got - want).max() < 1e-12
    own = Net(*CASES[case]).double()(X.double()).detach().numpy()
    assert relative_error(want, own) < 1e-6  # its weights are float32


def test_a_layer_with_bias_and_relu() -> None:
    model = load_model(program("4x4/2 cut"))
    made = tvm_winograd.compile(model)
    (layer,) = made.manifest["modules"][0]["layers"]
    assert layer["name"] == "up" and layer["epilogue"] == "bias+relu"
    assert verify(made, model).ok


def test_compiles_for_cuda() -> None:
    made = tvm_winograd.compile(program("2x2/2"), target="cuda", arch="sm_90", ptx=False)
    (layer,) = made.manifest["modules"][0]["layers"]
    assert layer["algorithm"] != "fallback" and "r1s1" in layer["spec"]


def test_one_weight_twice() -> None:
    class Twice(Net):
        def forward(self, x):
            y = torch.conv_transpose2d(x, self.up.weight, stride=2)
            return y, torch.conv_transpose2d(x, self.up.weight, self.up.bias, stride=2, padding=1)

    net = Twice(*CASES["4x4/2 cut"]).eval()
    got = tvm_winograd.compile(torch.export.export(net, (X,))).run(X.numpy())
    for have, want in zip(got, net(X), strict=True):
        assert relative_error(have, want.detach().numpy()) < 1e-6


@pytest.mark.parametrize("kind", ["dilated", "computed weight"])
def test_others_stay(kind) -> None:
    net = Net(3, 1, 0, 0, 1)
    if kind == "dilated":
        net.up = torch.nn.ConvTranspose2d(4, 8, 3, dilation=2)
    else:
        weight = net.up.weight.detach()
        net.forward = lambda x: torch.conv_transpose2d(x, weight * x.mean())
    net = net.eval()
    got = tvm_winograd.compile(torch.export.export(net, (X,))).run(X.numpy())
    assert relative_error(got, net(X).detach().numpy()) < 1e-6
