"""LSTM, GRU and RNN from ONNX and torch, run on the CPU; their CUDA text, run by the emulator."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import recurrent_layers as layers
import torch
from convs import poison
from cuda_emulator import run_text
from index_widths import lowered_function
from torch import nn

import tvm_winograd
from tvm_winograd.check.verify import verify
from tvm_winograd.cli import main
from tvm_winograd.codegen import build, nvrtc
from tvm_winograd.errors import ModelError, UnsupportedError
from tvm_winograd.frontend import load_model
from tvm_winograd.gpu import gpu_for, make_target
from tvm_winograd.ir.recurrent import CELLS, Recurrent
from tvm_winograd.schedules.rest import recurrent as schedules
from tvm_winograd.te.recurrent import prim_func
from tvm_winograd.truth.evaluate import evaluate
from tvm_winograd.truth.numpy_recurrent import recurrent
from tvm_winograd.truth.reference import relative_error

SM90 = gpu_for("sm_90")
BOTH = {"direction": "bidirectional"}
# numbers that are the same in float32, as attributes are
HARD = {"activation_alpha": [0.25, 0.125], "activation_beta": [0.375, 0.625]}
LARGE = (9, 2, 3, 96)  # in parallel, in vectors, sums in two parts
# name -> (operator, optional inputs, attributes, sizes)
RIGHT: dict[str, tuple[str, str, dict[str, Any], tuple[int, ...]]] = {
    "LSTM": ("LSTM", "B", {}, (4, 2, 3, 5)),
    "LSTM all inputs": ("LSTM", "BLHCP", {**BOTH, "clip": 0.375}, (4, 2, 3, 33)),
    "LSTM large": ("LSTM", "BH", BOTH, LARGE),
    "LSTM coupled": ("LSTM", "BHCP", {"direction": "reverse", "input_forget": 1}, (4, 2, 3, 5)),
    "LSTM batch first": ("LSTM", "BHC", {**BOTH, "layout": 1}, (4, 2, 3, 5)),
    "LSTM functions": (
        "LSTM",
        "B",
        {**BOTH, **HARD, "activations": ["HardSigmoid", "Tanh", "Relu"] * 2},
        (4, 2, 3, 5),
    ),
    "GRU": ("GRU", "BH", {"direction": "reverse"}, (4, 2, 3, 5)),
    "GRU large": ("GRU", "B", BOTH, LARGE),
    "GRU reset after": ("GRU", "BH", {**BOTH, "linear_before_reset": 1}, (4, 2, 3, 5)),
    "GRU batch first": ("GRU", "BH", {"layout": 1, "clip": 0.25}, (4, 2, 3, 5)),
    "RNN": ("RNN", "", {}, (4, 2, 3, 5)),
    "RNN functions": ("RNN", "BLH", {**BOTH, "activations": ["Relu", "Sigmoid"]}, (4, 2, 3, 5)),
}


@pytest.mark.parametrize("name", RIGHT)
def test_as_the_standard_says(name: str, tmp_path: Path) -> None:
    op, given, attributes, sizes = RIGHT[name]
    values = layers.arrays(op, given, sizes, **attributes)
    path = layers.save(tmp_path / "m.onnx", op, values, **attributes)
    want = layers.expected(op, values, **attributes)
    model = load_model(path)
    truth = evaluate(model.mod, model.params, [values["X"]])
    got = tvm_winograd.compile(path).run(values["X"])
    assert [g.shape for g in got] == [w.shape for w in want]
    for mine, evaluated, wanted in zip(got, truth, want, strict=True):
        assert relative_error(evaluated, wanted) < 1e-13
        assert relative_error(mine, wanted) < 5e-7


REFUSED = {
    "activation": ("LSTM", {"activations": ["Sigmoid", "Softsign", "Tanh"]}, "Softsign is none of"),
    "too few": ("LSTM", {"activations": ["Sigmoid"]}, "1 activations, 3 are needed"),
    "alpha": ("GRU", {"activation_alpha": [0.5]}, "more numbers than its activations take"),
    "direction": ("RNN", {"direction": "sideways"}, "sideways"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_operator_and_node(name: str, tmp_path: Path) -> None:
    op, attributes, words = REFUSED[name]
    path = layers.save(tmp_path / "m.onnx", op, layers.arrays(op), **attributes)
    with pytest.raises(ModelError, match=rf"(?s){op} \(node 'the_node'\) .*{words}"):
        load_model(path)


def test_shorter_sequences_are_refused(tmp_path: Path) -> None:
    values = layers.arrays("GRU", "BL") | {"L": np.array([4, 3], "int32")}
    with pytest.raises(ModelError, match=r"GRU \(node 'the_node'\).*sequence_lens \[4, 3\]"):
        load_model(layers.save(tmp_path / "m.onnx", "GRU", values))


def test_a_layer_of_too_many_elements_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"X has 2\^31 elements"):
        prim_func(layer("LSTM", steps=2**12, batch=2**8, hidden=2**9))


def layer(cell: str, directions: int = 1, **changes: Any) -> Recurrent:
    functions = tuple((name, ()) for name in CELLS[cell].functions)
    fields: dict[str, Any] = {"steps": 3, "batch": 2, "hidden": 40, **changes}
    backward = (False, True)[:directions]
    return Recurrent(
        cell, backward=backward, gates=CELLS[cell].gates, functions=(functions,) * directions,
        **fields,
    )  # fmt: skip


class Cuda:
    """A layer as CUDA text, its arguments and its results in float64."""

    def __init__(self, layer: Recurrent) -> None:
        with make_target(SM90):
            func = schedules.schedule(prim_func(layer), None)
        build.build(func, SM90, pipeline="tir")
        done = nvrtc.last_compilation()
        assert done is not None
        self.text, self.parts, self.layer = done.source, lowered_function(func, SM90), layer
        rng = np.random.default_rng(0)
        self.given = {n: rng.standard_normal(s).astype("f") for n, s in layer.inputs.items()}
        self.given["R"] /= np.float32(layer.hidden**0.5)
        self.want = recurrent(layer, [a.astype("float64") for a in self.given.values()])

    def error(self, text: str) -> float:
        """The largest of all results."""
        outputs = {n: poison(shape, "float32") for n, shape in self.layer.outputs.items()}
        run_text(text, self.parts, {**self.given, **outputs})
        pairs = zip(outputs.values(), self.want, strict=True)
        return float(np.max([relative_error(got, want) for got, want in pairs]))


CUDA = {
    "LSTM": layer("LSTM", 2, optional="BHCP"),
    "GRU": layer("GRU", hidden=70, optional="BH", clip=0.7),
    "GRU reset after": layer("GRU", 2, reset_after=True, x_axes="bt", y_axes="btdh"),
    "RNN of more units than threads": layer("RNN", hidden=1030, batch=1, optional="B"),
}


@pytest.mark.parametrize("name", CUDA)
def test_cuda_text_computes_the_layer(name: str) -> None:
    cuda = Cuda(CUDA[name])
    assert cuda.error(cuda.text) < 5e-7


def test_a_missing_barrier_is_noticed() -> None:
    """One is before the products read the state, one before the state is replaced."""
    cuda = Cuda(CUDA["LSTM"])
    before, between, after = cuda.text.split("__syncthreads();")
    for parts in ((before + between, after), (before, between + after)):
        assert not cuda.error("__syncthreads();".join(parts)) < 5e-7


class Net(nn.Module):
    """A layer with all its results, the states as further inputs where they are given."""

    def __init__(self, kind: type[nn.RNNBase], **options: Any) -> None:
        super().__init__()
        self.layer = kind(3, 5, **options)

    def forward(self, x: torch.Tensor, *states: torch.Tensor) -> tuple[torch.Tensor, ...]:
        start = (states if len(states) > 1 else states[0]) if states else None
        y, ends = self.layer(x, start)
        return (y, *ends) if isinstance(ends, tuple) else (y, ends)


TORCH = {
    "LSTM": (nn.LSTM, {"num_layers": 2, "bidirectional": True}, 2),
    "LSTM without bias": (nn.LSTM, {"bias": False, "batch_first": True}, 0),
    "LSTM with projections": (nn.LSTM, {"proj_size": 2}, 0),
    "GRU": (nn.GRU, {"num_layers": 2, "batch_first": True, "bidirectional": True}, 1),
    "RNN": (nn.RNN, {"bidirectional": True}, 0),
    "RNN of relu": (nn.RNN, {"nonlinearity": "relu", "dropout": 0.5, "num_layers": 2}, 1),
}


@pytest.mark.parametrize("name", TORCH)
def test_as_torch_computes_it(name: str) -> None:
    kind, options, count = TORCH[name]
    torch.manual_seed(0)
    net, x = Net(kind, **options).eval(), torch.randn(4, 2, 3)
    batch = x.shape[0 if options.get("batch_first") else 1]
    rows = options.get("num_layers", 1) * (2 if options.get("bidirectional") else 1)
    given = (x, *(torch.randn(rows, batch, 5) for _ in range(count)))
    program = torch.export.export(net, given)
    with torch.no_grad():
        want = copy.deepcopy(net).double()(*(g.double() for g in given))
    got = tvm_winograd.compile(program).run(*(g.numpy() for g in given))
    assert max(relative_error(g, w.numpy()) for g, w in zip(got, want, strict=True)) < 5e-7


def test_training_mode_is_refused() -> None:
    program = torch.export.export(Net(nn.GRU, num_layers=2, dropout=0.5), (torch.randn(4, 2, 3),))
    with pytest.raises(ModelError, match=r"gru.input \(node 'gru'\).*training mode"):
        load_model(program)


class Head(nn.Module):
    """Maps of one row to classes, as in networks that read text."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, (4, 3), padding=(0, 1))
        self.layer = nn.LSTM(8, 6, bidirectional=True)
        self.classes = nn.Linear(12, 7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        steps = self.conv(x)[:, :, 0].permute(2, 0, 1)
        return self.classes(self.layer(steps)[0])


def head(width: int) -> tuple[torch.export.ExportedProgram, np.ndarray]:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 4, width)
    sizes = {"x": {0: torch.export.Dim("batch", max=8)}}
    return torch.export.export(Head().eval(), (x,), dynamic_shapes=sizes), x.numpy()


def test_a_whole_network_is_verified() -> None:
    program, _ = head(9)
    model = load_model(program, batch=3)
    report = verify(tvm_winograd.compile(model), model)
    assert report.ok and report.imported is not None and report.imported < 1e-6


def test_steps_cost_no_operators_and_weights_no_kernels() -> None:
    sizes = []
    for width in (5, 15):
        program, _ = head(width)
        model = load_model(program, batch=2)
        sizes.append(sum(len(b.bindings) for b in model.mod["main"].body.blocks))
    assert sizes[0] == sizes[1]
    functions = [f["name"] for f in tvm_winograd.compile(model).manifest["modules"][0]["functions"]]
    assert "lstm" in functions and not [n for n in functions if "concat" in n]


def test_outputs_whose_first_axis_is_time_are_verified(tmp_path: Path, capsys) -> None:
    values = layers.arrays("LSTM", "BHC")
    path = str(layers.save(tmp_path / "m.onnx", "LSTM", values))
    made = str(tmp_path / "a")
    assert main(["compile", path, "--target", "llvm", "-o", made]) == 0
    assert main(["verify", made, "--model", path]) == 0
    assert "its own framework: " in capsys.readouterr().out


def test_what_onnx_reference_overlooks_is_not_compared(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)
    path = layers.save(tmp_path / "m.onnx", "GRU", layers.arrays("GRU"), clip=0.3)
    model = load_model(path)
    report = verify(tvm_winograd.compile(model), model)
    assert report.imported is None
    assert "does not look at all of GRU (node 'the_node') with clip" in report.not_compared[0]
