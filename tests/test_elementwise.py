"""Chains of element-wise operators: in one loop nest, each value computed once."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
import tvm
from convs import poison
from serial import serialise
from tvm import s_tir

import tvm_winograd
from tvm_winograd.choose.chooser import make_chooser
from tvm_winograd.choose.options import Wishes
from tvm_winograd.frontend import load_model
from tvm_winograd.gpu import gpu_for, host_cpu, make_target
from tvm_winograd.passes import pipeline
from tvm_winograd.schedules.rest import elementwise
from tvm_winograd.truth.reference import relative_error

X = np.random.default_rng(3).standard_normal((2, 5, 9, 11)).astype("float32")


class Chain(torch.nn.Module):
    """Each step reads its input twice or thrice."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps = steps

    def forward(self, x):
        for i in range(self.steps):
            x = torch.tanh(x) + 0.5 * x if i % 2 else torch.sin(x) + 0.1 * x * x
        return x


class Mixed(torch.nn.Module):
    """A small value spread over a large one, a window, a transpose, several outputs."""

    def forward(self, x):
        scale = torch.sigmoid(x.mean((2, 3), keepdim=True))
        y = x * scale * torch.sigmoid(x)
        moved = torch.tanh(y)[:, :, 1:, :] - torch.tanh(y)[:, :, :-1, :]
        z = y.transpose(2, 3)
        return moved, torch.exp(z) - z, y.amax((2, 3))


class Wide(torch.nn.Module):
    """A chain large enough for the rule on CUDA, with a value read at two places."""

    def forward(self, x):
        x = Chain(8)(x)
        return Chain(8)(x[:, :, 1:] + x[:, :, :-1])


def exported(module):
    return torch.export.export(module.eval(), (torch.from_numpy(X),))


def want(module):
    with torch.no_grad():
        out = module.double()(torch.from_numpy(X).double())
    return [o.numpy() for o in (out if isinstance(out, tuple) else (out,))]


def lowered(module, hardware):
    model = load_model(exported(module))
    return pipeline.lower(model.mod, model.params, hardware, make_chooser(hardware, Wishes()))


@pytest.mark.parametrize("module", [Chain(30), Mixed(), Wide()], ids=["chain", "mixed", "wide"])
def test_on_a_cpu(module, tmp_path):
    made = tvm_winograd.compile(exported(module), output=tmp_path / "a")
    got = tvm_winograd.load(made.path).run(X)
    got = got if isinstance(got, list | tuple) else [got]
    for g, w in zip(got, want(module), strict=True):
        assert relative_error(g, w) < 1e-5


@pytest.mark.parametrize("module", [Chain(16), Wide()], ids=["chain", "wide"])
def test_on_cuda_as_serial_loops(module):
    gpu = gpu_for("sm_90")
    made = lowered(module, gpu)
    (entry,) = made.functions
    assert entry["schedule"] == "cuda.elementwise"
    (func,) = (f for g, f in made.mod.functions_items() if g.name_hint == entry["name"])
    run = tvm.compile(
        serialise(tvm.IRModule({"f": func.with_attr("global_symbol", "f")})),
        target=make_target(host_cpu()),
    )
    (expected,) = want(module)
    out, *workspaces = (
        tvm.runtime.tensor(poison([int(n) for n in p.ty.shape], "float32")) for p in func.params[1:]
    )
    run["f"](tvm.runtime.tensor(X), out, *workspaces)
    assert relative_error(out.numpy(), expected) < 1e-5


def test_values_that_are_read_again_are_kept():
    """Without that, 40 steps would be an expression of 10**12 terms."""
    start = time.perf_counter()
    made = lowered(Chain(40), gpu_for("sm_90"))
    assert time.perf_counter() - start < 30
    (entry,) = made.functions
    (func,) = (f for g, f in made.mod.functions_items() if g.name_hint == entry["name"])
    assert len(elementwise.blocks_of(s_tir.Schedule(func))) == 40


def test_short_chains_are_left_to_tvm():
    (entry,) = lowered(Chain(2), gpu_for("sm_90")).functions
    assert entry["schedule"] == "dlight.Fallback"
