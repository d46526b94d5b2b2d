"""Reductions to a scalar."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch_functions import exported

import tvm_winograd

X = torch.randn(2, 3, 17, 16, generator=torch.Generator().manual_seed(0))
REDUCTIONS = {
    "mean": lambda x: x.mean(),
    "share of the maximum": lambda x: x / x.abs().max(),
    "sum of one axis": lambda x: x.reshape(-1).sum(0),
    "variance": lambda x: x.var(),
    "index": lambda x: x.argmax(),
    "short": lambda x: x[0, 0, 0].prod(),
    "loss": lambda x: torch.nn.functional.mse_loss(x, x * 2) + x,
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_on_the_cpu(name: str) -> None:
    got = tvm_winograd.compile(exported(REDUCTIONS[name], X)).run(X.numpy())
    want = REDUCTIONS[name](X).numpy()
    assert got.shape == want.shape and np.allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["mean", "share of the maximum", "index"])
def test_for_cuda(name: str) -> None:
    program = exported(REDUCTIONS[name], X)
    made = tvm_winograd.compile(program, target="cuda", arch="sm_90", ptx=False)
    assert made.manifest["modules"][0]["name"] == "sm_90"
