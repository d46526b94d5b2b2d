"""Operators of torch that TVM's importer alone gets wrong or does not know; names of variables."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch_functions import exported

import tvm_winograd
from tvm_winograd.errors import ModelError, UnsupportedError
from tvm_winograd.frontend import load_model
from tvm_winograd.truth.evaluate import evaluate
from tvm_winograd.truth.reference import relative_error

RIGHT = {
    "add": lambda x: torch.add(x, x * x, alpha=0.3),
    "sub of a number": lambda x: torch.sub(x, 2, alpha=0.3),
    "sub from a number": lambda x: torch.rsub(x, 2, alpha=3),
    "add of a mask": lambda x: torch.add(x, x > 0, alpha=2),
    "selu": F.selu,
    "nearest": lambda x: F.interpolate(x, size=(20, 7)),
    "nearest by 2": lambda x: F.interpolate(x, scale_factor=2),
    "nearest by half of 13": lambda x: F.interpolate(x, scale_factor=0.5),
    "bilinear by 2": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "larger, antialiased": lambda x: F.interpolate(x, (20, 24), mode="bilinear", antialias=True),
    "max": lambda x: x.max(1, keepdim=True)[0],
    "min": lambda x: x.min(3)[0],
    "amax": lambda x: x.amax((2, 3)),
    "global max": lambda x: F.adaptive_max_pool2d(x, 1),
    "max of windows": lambda x: F.adaptive_max_pool2d(x, (4, 13)),
}
REFUSED = {
    "scale_factor": lambda x: F.interpolate(x, scale_factor=1.7, mode="bilinear"),
    "antialias": lambda x: F.interpolate(x, (5, 6), mode="bilinear", antialias=True),
    "divisor_override": lambda x: F.avg_pool2d(x, 3, divisor_override=5),
    "grid_sample": lambda x: F.grid_sample(x, x[:, :2].permute(0, 2, 3, 1)),
    "adaptive_max_pool2d": lambda x: F.adaptive_max_pool2d(x, 5),
}
X = torch.randn(2, 4, 12, 13, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", RIGHT)
def test_as_torch_computes_it(name: str) -> None:
    model = load_model(exported(RIGHT[name], X))
    (got,) = evaluate(model.mod, model.params, [X.numpy()])
    assert relative_error(got, RIGHT[name](X.double()).numpy()) < 1e-6


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(name: str) -> None:
    with pytest.raises(ModelError, match=rf"{name}.* \(node '.*is not supported"):
        load_model(exported(REFUSED[name], X))


def test_what_has_no_kernel_is_named() -> None:
    with pytest.raises(UnsupportedError, match="no kernel can be made for cumprod"):
        tvm_winograd.compile(exported(lambda x: x.cumprod(1), X))


def test_layers_of_a_plain_sequential_build_for_cuda(tmp_path) -> None:
    """Their weights are called "0.weight": no names for C."""
    layers = torch.nn.Flatten(), torch.nn.Linear(4 * 12 * 13, 8), torch.nn.LayerNorm(8)
    program = torch.export.export(torch.nn.Sequential(*layers).eval(), (X,))
    made = tvm_winograd.compile(program, target="cuda", output=tmp_path / "a", ptx=False)
    assert made.manifest["modules"][0]["kind"] == "cubin"
    assert np.isfinite(tvm_winograd.compile(program).run(X.numpy())).all()
