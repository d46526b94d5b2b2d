"""ReLU6 as part of the convolutions, from the frontends to the check of an artifact."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import tvm_winograd
from tvm_winograd import ConvSpec, Epilogue
from tvm_winograd.check import verify
from tvm_winograd.choose.select import choose
from tvm_winograd.frontend import load_model
from tvm_winograd.frontend.builtin import builtin_model
from tvm_winograd.frontend.mobilenet import MobileNetV2Config
from tvm_winograd.gpu import gpu_for, host_cpu
from tvm_winograd.passes.group_convs import find_groups
from tvm_winograd.passes.merge_clips import merge_clips
from tvm_winograd.passes.pipeline import lower
from tvm_winograd.truth import reference

SMALL = MobileNetV2Config(
    ((1, 8, 1, 1), (6, 12, 2, 2), (6, 16, 1, 2)), 10, image_size=33, stem=8, last=32
)
LOUD = 2  # times the scale of each batch norm; more, and rounding grows from layer to layer


@pytest.fixture(scope="module")
def mobilenet():
    """A small MobileNetV2, every convolution of which gives values beyond 6."""
    model = builtin_model(SMALL, "mobilenet", batch=2)
    params = {
        name: array * np.float32(LOUD) if name.endswith(".weight") and array.ndim == 1 else array
        for name, array in model.params.items()
    }
    return replace(model, params=params)


def network_epilogues() -> dict[str, str]:
    """Layer -> epilogue: every convolution but the projections has a ReLU6."""
    blocks = {f"features.{i}.conv.{j}.0": "bias+relu6" for i in (2, 3, 4) for j in (0, 1)}
    ends = dict.fromkeys(("features.0.0", "features.1.conv.0.0", "features.5.0"), "bias+relu6")
    added = dict.fromkeys(("features.1.conv.1", "features.3.conv.2"), "bias+residual")
    return blocks | ends | added | dict.fromkeys(("features.2.conv.2", "features.4.conv.2"), "bias")


@pytest.mark.parametrize("hardware", [host_cpu(), gpu_for("sm_90")], ids=["llvm", "cuda"])
def test_no_clip_is_left_to_itself(mobilenet, hardware) -> None:
    lowered = lower(
        mobilenet.mod, mobilenet.params, hardware, lambda _, *conv: choose(*conv, hardware)
    )
    got = {layer.name: layer.epilogue.key() for layer in lowered.layers}
    assert got == network_epilogues()
    names = [gvar.name_hint for gvar in lowered.mod.get_global_vars()]
    assert len(names) > 10 and not [n for n in names if "clip" in n or "minimum" in n]


def test_verified_where_the_maps_exceed_6(mobilenet, tmp_path, monkeypatch) -> None:
    peaks, bare = {}, verify.bare_convolution

    def recorded(runner, layer, data, w, want):
        peaks[layer["name"]] = float(np.abs(want).max())
        return bare(runner, layer, data, w, want)

    monkeypatch.setattr(verify, "bare_convolution", recorded)
    artifact = tvm_winograd.compile(mobilenet, output=tmp_path / "a")
    report = verify.verify(artifact, mobilenet)
    assert report.ok, report
    assert set(peaks) == set(network_epilogues()) and min(peaks.values()) > 6


@pytest.mark.parametrize("loudness", [0.1, 1.0, 100.0])
@pytest.mark.parametrize("epilogue", ["none", "bias+residual+relu", "bias+residual+relu6"])
def test_the_bare_convolution_of_a_function(loudness, epilogue) -> None:
    """To the last bit: a power of two and a sign change no rounding."""
    spec = ConvSpec(n=1, c=3, h=5, w=4, k=6)
    rng = np.random.default_rng(0)
    x = (rng.standard_normal(spec.input_shape) * loudness).astype("float32")
    w = rng.standard_normal(spec.weight_shape).astype("float32")

    def deployed(_, arguments, shape, dtype):
        data, weights, *rest = arguments
        y = reference.conv2d(spec, data, weights, "float32")
        done = reference.apply_epilogue(spec, Epilogue.from_key(epilogue), y, *rest)
        return done.reshape(shape).astype(dtype)

    runner = SimpleNamespace(params={"layer.packed.x": w}, call_function=deployed)
    layer = {"name": "layer", "function": "f", "spec": spec.key(), "epilogue": epilogue}
    want = reference.conv2d(spec, x, w, "float32")
    got = verify.bare_convolution(runner, layer, x, w, want)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    "activation", [torch.nn.ReLU6(), torch.nn.Hardtanh(0, 6), lambda y: torch.relu(y).clamp(max=6)]
)
def test_from_torch(activation, tmp_path) -> None:
    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = torch.nn.Conv2d(3, 4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return activation(self.conv(x))

    program = torch.export.export(Network().eval(), (torch.zeros(1, 3, 8, 8),))
    torch.export.save(program, tmp_path / "a.pt2")
    assert epilogues(tmp_path / "a.pt2") == ["bias+relu6"]


@pytest.mark.parametrize("opset", [6, 13])  # bounds as attributes, as inputs
def test_from_onnx(opset, tmp_path) -> None:
    shapes = {"x": [1, 3, 8, 8], "y": [1, 4, 6, 6]}
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items())
    arrays = {"w": np.ones((4, 3, 3, 3), "float32"), "b": np.ones(4, "float32")}
    bounds = {"min": 0.0, "max": 6.0}
    nodes = [helper.make_node("Conv", ["x", "w", "b"], ["c"])]
    if opset < 11:
        nodes.append(helper.make_node("Clip", ["c"], ["y"], **bounds))
    else:
        nodes.append(helper.make_node("Clip", ["c", *bounds], ["y"]))
        arrays |= {name: np.array(value, "float32") for name, value in bounds.items()}
    initializers = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "g", [x], [y], initializers)
    opsets = [helper.make_opsetid("", opset)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "a.onnx")
    assert epilogues(tmp_path / "a.onnx") == ["bias+relu6"]


def epilogues(path) -> list[str]:
    merged = merge_clips(load_model(str(path)).mod)
    return [group.epilogue.key() for group in find_groups(merged["main"])]
