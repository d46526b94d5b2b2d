"""torch's indexing: negative, advanced, out of range, and written to."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import tensor
from torch_functions import exported

from tvm_winograd.errors import ModelError
from tvm_winograd.frontend import load_model
from tvm_winograd.truth.evaluate import evaluate


def written(key, value):
    """x with `value` at `key`."""

    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y[key] = value
        return y

    return function


ALL = slice(None)
RIGHT = {
    "x[-1]": lambda x: x[-1] * 2,
    "x[..., -1]": lambda x: x[..., -1] + 0,
    "x[:, -2:]": lambda x: x[:, -2:] * 1,
    "x[:, -100:100:2]": lambda x: x[:, -100:100:2] * 1,
    "narrow": lambda x: x.narrow(-1, -3, 2) * 1,
    "a list": lambda x: x[:, [0, -1]],
    "a tensor of two axes": lambda x: x[:, tensor([[0, -1], [1, 2]])],
    "a scalar tensor": lambda x: x[:, tensor(-1)] * 1,
    "pointwise": lambda x: x[:, :, tensor([0, 1, -1]), tensor([1, -3, 0])],
    "broadcast": lambda x: x[:, :, tensor([[0], [-1]]), tensor([1, -2, 3])],
    "apart": lambda x: x[:, tensor([0, -1]), :, tensor([1, -2])],
    "every axis": lambda x: x[tensor([0, -1]), tensor([1, 2]), tensor([0, 0]), tensor([-1, 3])],
    "a constant mask": lambda x: x[:, tensor([True, False, True, False])],
    "computed": lambda x: x[:, (x[0, :2, 0, 0] * 0 - 1).long()],
    "computed, two": lambda x: x[
        :, :, (x[0, :2, 0, 0] * 0 - 2).long(), (x[0, :2, 0, 0] * 0 - 1).long()
    ],
    "index_select": lambda x: x.index_select(-1, tensor([7, 0, 3])),
    "take": lambda x: x.take(tensor([0, -1, 5])),
    "gather": lambda x: x.gather(1, tensor([0, 3, 1]).view(1, 3, 1, 1).expand(2, 3, 8, 9)),
    "gather by argmax": lambda x: x.gather(1, x.argmax(1, keepdim=True)),
    "x[:, -1] = 1": written((ALL, -1), 1.0),
    "x[:, 1:3] = 0": written((ALL, slice(1, 3)), 0.0),
    "x[..., ::2] = 0": written((..., slice(0, None, 2)), 0.0),
    "x[:, [0, -1]] = 7": written((ALL, [0, -1]), 7.0),
    "x[:, :, i, j] = 7": written((ALL, ALL, tensor([0, -1]), tensor([1, -2])), 7.0),
    "index_add": lambda x: x.index_add(1, tensor([0, 3]), x[:, :2]),
    "unfold": lambda x: torch.nn.functional.unfold(x, 3, padding=1, stride=2),
}
REFUSED = {
    "an index outside": (lambda x: x[:, tensor([0, 4])], r"index 4 lies outside a dimension of 4"),
    "embedding": (
        lambda x: torch.nn.functional.embedding(tensor([0, 5]), x[0, 0]) * 1,
        r"",
    ),
    "a computed mask": (lambda x: written(x > 0, 0.0)(x), r"index_put.*torch\.where"),
    "added twice": (lambda x: x.index_add(1, tensor([0, 0]), x[:, :2]), r"index_put.*repeats"),
}
X = torch.randn(2, 4, 8, 9, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", RIGHT)
def test_as_torch_reads_and_writes(name: str) -> None:
    model = load_model(exported(RIGHT[name], X))
    (got,) = evaluate(model.mod, model.params, [X.numpy()])
    want = RIGHT[name](X).numpy()
    assert got.shape == want.shape and np.allclose(got, want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["an index outside", "a computed mask", "added twice"])
def test_refused(name: str) -> None:
    function, words = REFUSED[name]
    x = X
    with pytest.raises(ModelError, match=words):
        load_model(_unchecked(function, x))


def _unchecked(function, x):
    """torch itself refuses a constant index outside; a program may hold one all the same."""
    if function is REFUSED["an index outside"][0]:
        program = exported(lambda x: x[:, tensor([0, 3])], x)
        (constant,) = program.constants
        program.constants[constant].add_(tensor([0, 1]))
        return program
    return exported(function, x)


def test_a_dynamic_batch_is_a_number_before_the_import() -> None:
    batch = torch.export.Dim("batch", min=1, max=8)

    class Net(torch.nn.Module):
        def forward(self, x):
            n, c, h, w = x.shape
            y = x.view(n, 2, c // 2, h * w).transpose(1, 2).reshape(n, c, h, w)
            return y[-1] + y[:, -1:].sum()

    program = torch.export.export(Net(), (X,), dynamic_shapes={"x": {0: batch}})
    for size in (1, 3):
        model = load_model(program, batch=size)
        x = torch.randn(size, 4, 8, 9).numpy()
        (got,) = evaluate(model.mod, model.params, [x])
        assert np.allclose(got, Net()(torch.from_numpy(x)).numpy(), atol=1e-4)
    with pytest.raises(ModelError, match="at most 8"):
        load_model(program, batch=9)


def test_lazily_negated_constants_and_weights() -> None:
    view = torch.tensor([1 + 2j, 3 - 4j]).conj().imag  # a negative bit, no other numbers

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("constant", view, persistent=False)
            self.weight = torch.nn.Parameter(view)

        def forward(self, x):
            return x * self.constant + self.weight

    x = torch.ones(3, 2)
    assert view.is_neg() and Net().weight.is_neg()
    model = load_model(torch.export.export(Net().eval(), (x,)))
    (got,) = evaluate(model.mod, model.params, [x.numpy()])
    assert np.array_equal(got, Net()(x).detach().numpy())


def test_none_among_the_outputs() -> None:
    model = load_model(exported(lambda x: (x + 1, None, x * 2), X))
    assert [output.shape for output in model.outputs] == [X.shape] * 2
    assert [a.shape for a in model.original([X.numpy()])] == [X.shape] * 2
