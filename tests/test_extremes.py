"""Maxima, minima and their places, of infinities and truth values too; powers of integers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch_functions import exported

import tvm_winograd
from tvm_winograd.errors import ModelError
from tvm_winograd.frontend import load_model

INF = float("inf")
LARGE = float(np.finfo("float32").max)
X = torch.tensor([[-INF] * 3, [INF] * 3, [-LARGE, -INF, -INF], [LARGE, INF, 1], [3, -1, 3.5]])

FUNCTIONS = {
    "amax": lambda x: x.amax(1),
    "amin": lambda x: x.amin(1),
    "all of it": lambda x: (x[:1].amax(), x[1:2].amin()),
    "argmax": lambda x: x.argmax(1),
    "argmin": lambda x: x.argmin(1),
    "divided by zero": lambda x: (x / 0.0, (x - x.clamp(-1, 1)) / -0.0),
    "product": lambda x: (x.clamp(-9, 9).prod(1), x.clamp(-9, 9).int().prod(0, keepdim=True)),
    "with places": lambda x: x.max(1),
    "truth": lambda x: ((x > 0).amax(1), (x > 0).amin(1)),
    "integers": lambda x: x.clamp(-9, 9).int().amax(1),
    "power": lambda x: (x.clamp(-9, 9).int() ** 3, x.clamp(-9, 9).long() ** 0, x.abs() ** 0.5),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_as_torch_computes_it(name) -> None:
    want = FUNCTIONS[name](X)
    want = [want] if isinstance(want, torch.Tensor) else list(want)
    got = tvm_winograd.compile(exported(FUNCTIONS[name], X)).run(X.numpy())
    for have, asked in zip(got if isinstance(got, tuple) else [got], want, strict=True):
        assert have.dtype == asked.numpy().dtype and np.array_equal(
            have, asked.numpy(), equal_nan=asked.is_floating_point()
        )


def test_cuda() -> None:
    program = exported(lambda x: (x.amax(1), x.argmin(1), x.amin(), (x > 0).amax(0)), X)
    made = tvm_winograd.compile(program, target="cuda", arch="sm_90", ptx=False)
    assert len(made.manifest["modules"][0]["functions"]) >= 4


def test_powers_of_integers_that_are_not_computed() -> None:
    with pytest.raises(ModelError, match=r"pow of integers by 17 \(node 'pow_1'\)"):
        load_model(exported(lambda x: x.int() ** 17, X))
