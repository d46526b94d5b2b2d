"""What is no convolution on the CPU: long sums in parts, products of matrices."""

from __future__ import annotations

import pytest
import torch
from torch_functions import exported

import tvm_winograd
from tvm_winograd.truth.reference import relative_error

X = torch.randn(2, 4, 64, 66, generator=torch.Generator().manual_seed(0)) + 1
ONES = torch.ones(2, 4)
SUMS = {
    "mean of maps": lambda x: x.mean((2, 3)),
    "rectified mean": lambda x: x.mean((2, 3)).relu() + 1,
    "mean of all": lambda x: x.mean((0, 2, 3)),
    "mean of the middle": lambda x: x.mean((1, 2)),
    "prime": lambda x: x[:, :, :37, :37].mean((2, 3)),
    "primes": lambda x: x.flatten(1)[:, : 67 * 71].mean(1),
    "group norm": lambda x: torch.nn.functional.group_norm(x, 2, *ONES.to(x)),
    "layer norm": lambda x: torch.nn.functional.layer_norm(x, x.shape[2:]),
    "windows": lambda x: torch.nn.functional.avg_pool2d(x, 33),
    "softmax": lambda x: x.flatten(1).softmax(1),
    "maximum": lambda x: x.amax((2, 3)),
    "index": lambda x: x.flatten(1).argmax(1).float(),
}

# (A, B): columns in whole vectors, in ragged ones, a divisor that is no vector, few, of batches
PRODUCTS = {
    "vectors": ((25, 1024), (1024, 192)),
    "ragged": ((3, 512), (512, 131)),
    "no vectors": ((5, 2, 700), (700, 74)),
    "few": ((1, 1021), (1021, 3)),
    "of a vector": ((640,), (640, 48)),
    "batches": ((2, 4, 9, 256), (2, 4, 256, 36)),
    "one matrix for many": ((2, 1, 9, 256), (4, 256, 36)),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn(shape, generator=generator) for shape in PRODUCTS[name])
    made = tvm_winograd.compile(exported(lambda a: a @ w.to(a), x), target="llvm")
    limit = 6e-7 if name == "few" else 2e-7  # 1,021 is a prime: one sum
    assert relative_error(made.run(x.numpy()), (x.double() @ w.double()).numpy()) < limit


@pytest.mark.parametrize("name", SUMS)
def test_long_sums(name: str) -> None:
    made = tvm_winograd.compile(exported(SUMS[name], X), target="llvm")
    want = SUMS[name](X.double()).numpy()
    assert relative_error(made.run(X.numpy()), want) < 2e-7  # in one sum 1e-6
