"""Models in: the same network as built-in, torch.export and ONNX; weights; every refusal."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import save_file
from torch_resnet import torch_resnet

from tvm_winograd.errors import ModelError
from tvm_winograd.evaluate import evaluate
from tvm_winograd.frontend import Model, builtin, load_model, weights
from tvm_winograd.frontend.builtin import resnet_model
from tvm_winograd.frontend.resnet import ResNetConfig
from tvm_winograd.passes.fold_batch_norm import fold_batch_norm
from tvm_winograd.peers import torch_conv
from tvm_winograd.reference import relative_error

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
    model = resnet_model(request.param, batch=2)
    net = torch_resnet(request.param, model.params)
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
    assert not report.left and "batch_norm" not in folded.script().replace("batch_norm_", "")
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
    model = resnet_model(DIGITS, batch=2)
    x = images(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            torch_resnet(DIGITS, model.params), (torch.from_numpy(x),), tmp_path / "net.onnx",
            dynamo=True, external_data=True, verbose=False,
        )  # fmt: skip
    loaded = load_model(tmp_path / "net.onnx")
    assert list(loaded.source["external"]) == ["net.onnx.data"]
    assert "layer1.0.conv1.weight" in loaded.params
    assert relative_error(output(loaded, x), output(model, x)) < 1e-5


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
    assert load_model(model) is model
    with pytest.raises(ModelError, match="batch 4, not 2"):
        load_model(model, batch=2)


def test_main_branch_comes_before_the_shortcut() -> None:
    model, names = resnet_model(BASIC), []
    evaluate(
        model.mod, model.params, [images(model)], "float32", torch_conv,
        on_conv=lambda index, name, *_: names.append(name),
    )  # fmt: skip
    assert names.index("layer2.0.conv2") < names.index("layer2.0.downsample.0")


@pytest.mark.parametrize("name", ["resnet18", "resnet152"])
def test_calibrated_activations_stay_alive(name: str) -> None:
    model = load_model(name)
    outs, deviations = [], {}
    for seed in (1, 2):
        outs.append(
            output(
                model, images(model, seed), dtype="float32", conv=torch_conv,
                on_conv=lambda index, conv, spec, x, w, y: deviations.update({conv: y.std()}),
            )  # fmt: skip
        )
    assert 0.1 < min(deviations.values()) and max(deviations.values()) < 50
    assert relative_error(outs[0], outs[1]) > 0.05
    assert outs[0].std() > 0.1


def test_calibration_does_not_see_the_last_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another machine sums in another order: the statistics must come out the same."""
    want = resnet_model(BOTTLENECK, seed=7).params
    rng = np.random.default_rng(0)

    def other_machine(mod, params, inputs, **hooks):
        from tvm_winograd.reference import conv2d

        def conv(spec, x, w):
            y = conv2d(spec, x, w)
            return y * (1 + 1e-14 * rng.standard_normal(y.shape))

        return evaluate(mod, params, inputs, conv=conv, **hooks)

    monkeypatch.setattr(weights, "evaluate", other_machine)
    got = resnet_model(BOTTLENECK, seed=7).params
    for name, array in want.items():
        np.testing.assert_array_equal(got[name], array, err_msg=name)
    assert not np.array_equal(resnet_model(BOTTLENECK, seed=8).params["fc.weight"], want["fc.weight"])


@pytest.mark.parametrize("suffix", [".safetensors", ".npz"])
def test_weights_file(tmp_path: Path, suffix: str) -> None:
    params = resnet_model(DIGITS, seed=5).params
    arrays = {**params, "bn1.num_batches_tracked": np.array(7)}
    path = tmp_path / f"w{suffix}"
    (save_file if suffix == ".safetensors" else lambda a, p: np.savez(p, **a))(arrays, path)
    model = resnet_model(DIGITS, weights=path)
    assert list(model.params) == list(params)
    for name, array in params.items():
        np.testing.assert_array_equal(model.params[name], array)
    assert model.source["weights"]["file"] == path.name and "seed" not in model.source
    assert len(model.source["weights"]["sha256"]) == 64


def test_wrong_weights_are_listed(tmp_path: Path) -> None:
    params = dict(resnet_model(DIGITS).params)
    params["extra"] = params.pop("bn1.bias")
    params["fc.weight"] = params["fc.weight"].T
    params["fc.bias"] = params["fc.bias"].astype("float16")
    path = tmp_path / "w.npz"
    np.savez(path, **params)
    with pytest.raises(ModelError) as error:
        resnet_model(DIGITS, weights=path)
    for words in (
        "missing: bn1.bias",
        "unexpected: extra",
        "fc.weight (16, 10) instead of (10, 16)",
        "not float32: fc.bias float16",
    ):
        assert words in str(error.value)


@pytest.mark.parametrize("name", ["w.npz", "w.safetensors", "w.pth", "absent.npz"])
def test_unreadable_weights(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if "absent" not in name:
        path.write_bytes(b"no weights at all")
    with pytest.raises(ModelError, match=name):
        load_model("resnet18", weights=path)


def test_weights_for_a_file_model(trio, tmp_path: Path) -> None:
    model, *_, file = trio
    path = tmp_path / "w.npz"
    np.savez(path, **{n: a * 2 for n, a in model.params.items()})
    loaded = load_model(file, weights=path)
    np.testing.assert_array_equal(loaded.params["fc.bias"], model.params["fc.bias"] * 2)
    assert loaded.source["weights"]["file"] == "w.npz"


@pytest.mark.parametrize(
    ("name", "words"),
    [("resnet19", "resnet152"), ("net.h5", ".pt2"), ("absent.onnx", "does not exist")],
)
def test_unknown_models(name: str, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        load_model(name)
    with pytest.raises(ModelError, match="positive"):
        load_model("resnet18", batch=0)
    with pytest.raises(ModelError, match="int is no model"):
        load_model(18)


@pytest.mark.parametrize("name", ["bad.onnx", "bad.pt2"])
@pytest.mark.parametrize("content", [b"", b"hello, I am no model", bytes(range(256)) * 9])
def test_corrupt_files(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ModelError, match=name):
        load_model(path)


def save_onnx(path: Path, nodes: list, arrays: dict, shape, kind=TensorProto.FLOAT, opset=17):
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", kind, shape)],
        [helper.make_tensor_value_info("y", kind, None)],
        [numpy_helper.from_array(a, n) for n, a in arrays.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.save(model, path)
    return path


def test_onnx_shape_arithmetic_pads_sum_and_auto_pad(tmp_path: Path) -> None:
    """What TVM's importer alone takes badly: a Reshape and pads computed from a shape, a Sum,
    SAME padding."""
    node = helper.make_node
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "zero"], ["n"]),
        node("Concat", ["n", "minus"], ["flat"], axis=0),
        node("Mul", ["ones8", "n"], ["pads0"]),
        node("Mul", ["pads0", "mask"], ["pads"]),
        node("Pad", ["x", "pads"], ["padded"]),
        node("Conv", ["padded", "w", "b"], ["c"], auto_pad="SAME_UPPER", strides=[2, 2]),
        node("Sum", ["c", "c", "c"], ["s"]),
        node("Clip", ["s", "low"], ["clipped"]),
        node("Reshape", ["clipped", "flat"], ["y"]),
    ]
    arrays = {
        "zero": np.array([0]), "minus": np.array([-1]), "ones8": np.ones(8, np.int64),
        "mask": np.array([0, 0, 1, 0, 0, 0, 0, 1]), "low": np.float32(-0.5),
        "w": np.random.default_rng(0).standard_normal((5, 3, 3, 3)).astype("float32"),
        "b": np.arange(5, dtype="float32"),
    }  # fmt: skip
    path = save_onnx(tmp_path / "net.onnx", nodes, arrays, ["N", 3, 7, 8])
    model = load_model(path, batch=2)
    assert list(model.params) == ["w", "b"]
    x = np.random.default_rng(1).standard_normal((2, 3, 7, 8)).astype("float32")
    # pads: batch rows above, batch columns right -> 9 x 10; SAME at stride 2 adds (1, 1), (0, 1)
    data = torch.nn.functional.pad(torch.from_numpy(x).double(), (0, 2, 2, 0))
    data = torch.nn.functional.pad(data, (0, 1, 1, 1))
    w, b = (torch.from_numpy(arrays[n]).double() for n in "wb")
    want = (3 * torch.nn.functional.conv2d(data, w, b, stride=2)).clip(-0.5).reshape(2, -1)
    np.testing.assert_allclose(output(model, x), want.numpy(), rtol=1e-12)


def test_onnx_refusals(tmp_path: Path) -> None:
    relu = helper.make_node("Relu", ["x"], ["y"], "act")
    file = tmp_path / "net.onnx"
    det = helper.make_node("Det", ["x"], ["y"], "determinant")
    with pytest.raises(ModelError, match=r"Det \(node 'determinant'\)"):
        load_model(save_onnx(file, [det], {}, [1, 3, 3]))
    foreign = helper.make_node("Fancy", ["x"], ["y"], "f", domain="com.example")
    with pytest.raises(ModelError, match="com.example::Fancy"):
        load_model(save_onnx(file, [foreign], {}, [1, 3]))
    with pytest.raises(ModelError, match="FLOAT16.*float32"):
        load_model(save_onnx(file, [relu], {}, [1, 3], TensorProto.FLOAT16))
    with pytest.raises(ModelError, match="dynamic sizes H"):
        load_model(save_onnx(file, [relu], {}, [1, 3, "H", 8]))
    fixed = helper.make_node("Reshape", ["x", "s"], ["y"])
    path = save_onnx(file, [fixed], {"s": np.array([1, 12])}, [1, 3, 4])
    assert load_model(path).batch == 1
    with pytest.raises(ModelError, match="fixes its batch"):
        load_model(path, batch=2)


def test_torch_refusals() -> None:
    def exported(net: torch.nn.Module, *shape: int, dtype=torch.float32, **options):
        return torch.export.export(net, (torch.zeros(shape, dtype=dtype),), **options)

    norm = torch.nn.BatchNorm2d(3)
    with pytest.raises(ModelError, match=r"\.eval\(\)"):
        load_model(exported(norm.train(), 2, 3, 4, 4))
    fixed = exported(norm.eval(), 2, 3, 4, 4)
    assert load_model(fixed, batch=2).batch == 2
    with pytest.raises(ModelError, match="fixed batch 2"):
        load_model(fixed, batch=1)
    with pytest.raises(ModelError, match="float16"):
        load_model(exported(torch.nn.ReLU(), 2, 3, dtype=torch.float16))
    dims = {"input": {2: torch.export.Dim("height")}}
    with pytest.raises(ModelError, match="only the batch"):
        load_model(exported(torch.nn.ReLU(), 2, 3, 5, 5, dynamic_shapes=dims))


def test_every_builtin_has_torchvisions_shapes() -> None:
    """Parameter counts as published: 11.7, 21.8, 25.6, 44.5, 60.2 million (weights and norms)."""
    counts = {}
    for name, config in builtin.BUILTINS.items():
        _, shapes = builtin.build(config, 1)
        counts[name] = sum(int(np.prod(s)) for n, s in shapes.items() if "running" not in n)
    assert counts == {
        "resnet18": 11689512,
        "resnet34": 21797672,
        "resnet50": 25557032,
        "resnet101": 44549160,
        "resnet152": 60192808,
    }
