"""Models in: the same network as built-in, torch.export and ONNX; the Model they share."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tvm_winograd.bench.network.torch_networks import torch_network
from tvm_winograd.errors import ModelError
from tvm_winograd.frontend import Model, builtin, load_model, resnet, weights
from tvm_winograd.frontend.builtin import builtin_model
from tvm_winograd.frontend.resnet import ResNetConfig
from tvm_winograd.passes.fold_batch_norm import fold_batch_norm
from tvm_winograd.truth.evaluate import evaluate
from tvm_winograd.truth.peers import torch_conv
from tvm_winograd.truth.reference import relative_error

# both block kinds and both stems, small enough for seconds
BASIC = ResNetConfig("basic", (2, 1, 1, 1), 10, image_size=64, widths=(8, 16, 24, 32))
BOTTLENECK = ResNetConfig("bottleneck", (1, 2, 1, 1), 10, image_size=64, widths=(4, 8, 12, 16))
DIGITS = ResNetConfig("basic", (1, 1), 10, 1, image_size=8, widths=(8, 16), small_stem=True)


def images(model: Model, seed: int = 1) -> np.ndarray:
    return weights.random_images(np.random.default_rng(seed), model.inputs[0].shape)


def output(model: Model, x: np.ndarray, **options) -> np.ndarray:
    return evaluate(model.mod, model.params, [x], **options)[0]


@pytest.fixture(scope="module", params=[BASIC, BOTTLENECK], ids=["basic", "bottleneck"])
def trio(request, tmp_path_factory):
    """(built-in, torch network, torch.export program, ONNX file), all with the same weights."""
    model = builtin_model(request.param, batch=2)
    net = torch_network(request.param, model.params)
    x = (torch.from_numpy(images(model)),)
    dims = {"x": {0: torch.export.Dim("batch", max=8)}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exported = torch.export.export(net, x, dynamic_shapes=dims)
        file = tmp_path_factory.mktemp("onnx") / "net.onnx"
        torch.onnx.export(
            net, x, file, dynamo=False, do_constant_folding=False, input_names=["x"],
            output_names=["logits"], dynamic_axes={"x": {0: "batch"}},
        )  # fmt: skip
    return model, net, exported, file


def test_builtin_agrees_with_torch(trio) -> None:
    model, net, *_ = trio
    x = images(model)
    want = net.double()(torch.from_numpy(x).double()).detach().numpy()
    got_torch = net.float()(torch.from_numpy(x)).detach().numpy()
    assert relative_error(output(model, x), want) < 1e-12
    got = output(model, x, dtype="float32", conv=torch_conv)
    assert relative_error(got, got_torch) < 1e-5


def test_torch_export_agrees(trio, tmp_path: Path) -> None:
    model, _, exported, _ = trio
    file = tmp_path / "net.pt2"
    torch.export.save(exported, file)
    loaded = load_model(file, batch=2)
    assert {n: a.shape for n, a in loaded.params.items()} == {
        n: a.shape for n, a in model.params.items()
    }
    assert loaded.inputs[0].shape == (2, 3, 64, 64) and loaded.batch == 2
    assert loaded.source["file"] == "net.pt2" and loaded.source["kind"] == "torch.export"
    x = images(model)
    assert relative_error(output(loaded, x), output(model, x)) < 1e-12
    folded, params, report = fold_batch_norm(loaded.mod, loaded.params)
    assert not report.left and "nn.batch_norm" not in folded.script()
    assert relative_error(evaluate(folded, params, [x])[0], output(model, x)) < 3e-6
    assert load_model(exported).batch == 1
    with pytest.raises(ModelError, match="at most 8"):
        load_model(exported, batch=9)


def test_onnx_agrees(trio) -> None:
    model, _, _, file = trio
    loaded = load_model(str(file), batch=2)
    assert set(loaded.params) == set(model.params)
    assert loaded.inputs[0].name == "x" and loaded.outputs[0].name == "logits"
    assert loaded.outputs[0].shape == (2, 10)
    x = images(model)
    # the file holds batch norm's 1e-5 as a float32
    assert relative_error(output(loaded, x), output(model, x)) < 1e-10
    assert not fold_batch_norm(loaded.mod, loaded.params)[2].left
    assert load_model(file).batch == 1


def test_onnx_of_the_new_exporter(tmp_path: Path) -> None:
    """torch's dynamo exporter folds batch norm itself and writes the weights beside the file."""
    model = builtin_model(DIGITS, batch=2)
    x = images(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            torch_network(DIGITS, model.params), (torch.from_numpy(x),), tmp_path / "net.onnx",
            dynamo=True, external_data=True, verbose=False,
        )  # fmt: skip
    loaded = load_model(tmp_path / "net.onnx")
    assert list(loaded.source["external"]) == ["net.onnx.data"]
    assert "layer1.0.conv1.weight" in loaded.params
    assert relative_error(output(loaded, x), output(model, x)) < 1e-5
    (tmp_path / "net.onnx.data").unlink()
    with pytest.raises(ModelError, match=r"net\.onnx"):
        load_model(tmp_path / "net.onnx")


def test_model_contract() -> None:
    model = load_model("resnet18", batch=4, seed=3)
    assert model.source == {"kind": "builtin", "name": "resnet18", "batch": 4, "seed": 3}
    assert json.loads(json.dumps(model.source)) == model.source
    assert model.preprocess is not None and model.preprocess["crop"] == 224
    function = model.mod["main"]
    assert int(function.attrs["num_input"]) == 1
    assert [p.name for p in function.params] == ["input", *model.params]
    assert [tuple(map(int, p.ty.shape)) for p in function.params[1:]] == [
        a.shape for a in model.params.values()
    ]
    assert list(model.params)[:2] == ["conv1.weight", "bn1.weight"]
    assert "layer2.0.downsample.1.running_var" in model.params
    assert load_model(model) is model and load_model(model, batch=4) is model
    with pytest.raises(ModelError, match="batch 4, not 2"):
        load_model(replace(model, rebuild=None), batch=2)


def test_the_same_model_at_another_batch(trio) -> None:
    builtin_, _, exported, file = trio
    for model in (builtin_, load_model(exported, batch=2), load_model(file, batch=2)):
        other = load_model(replace(model, params=dict(model.params)), batch=3)
        assert other.batch == 3 and other.outputs[0].shape == (3, 10)
        assert (other.name, list(other.params)) == (model.name, list(model.params))
        assert all(other.params[name] is array for name, array in model.params.items())
        x = images(other)
        want = np.concatenate([output(model, x[:2]), output(model, x[1:])[1:]])
        assert relative_error(output(other, x), want) < 1e-12


def test_main_branch_comes_before_the_shortcut() -> None:
    model, names = builtin_model(BASIC), []
    evaluate(
        model.mod, model.params, [images(model)], "float32", torch_conv,
        on_conv=lambda index, name, *_: names.append(name),
    )  # fmt: skip
    assert names.index("layer2.0.conv2") < names.index("layer2.0.downsample.0")


def test_weights_for_a_file_model(trio, tmp_path: Path) -> None:
    model, *_, file = trio
    path = tmp_path / "w.npz"
    np.savez(path, **{n: a * 2 for n, a in model.params.items()})
    loaded = load_model(file, weights=path)
    np.testing.assert_array_equal(loaded.params["fc.bias"], model.params["fc.bias"] * 2)
    assert loaded.source["weights"]["file"] == "w.npz"


def test_every_builtin_has_torchvisions_shapes() -> None:
    """Parameter counts as published: 11.7, 21.8, 25.6, 44.5, 60.2 million (weights and norms)."""
    counts = {}
    for name, config in resnet.BUILTINS.items():
        _, shapes = builtin.build(config, 1)
        counts[name] = sum(int(np.prod(s)) for n, s in shapes.items() if "running" not in n)
    assert counts == {
        "resnet18": 11689512,
        "resnet34": 21797672,
        "resnet50": 25557032,
        "resnet101": 44549160,
        "resnet152": 60192808,
    }
