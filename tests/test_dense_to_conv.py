"""Dense layers with long sums as convolutions: the same function, its layers named and fused."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

import tvm_winograd
from tvm_winograd.check.verify import verify
from tvm_winograd.frontend.model import make_model
from tvm_winograd.passes.dense_to_conv import dense_to_conv
from tvm_winograd.truth.evaluate import evaluate
from tvm_winograd.truth.reference import relative_error

C, HIDDEN, K = 2500, 2100, 10


def network(*, transposed: bool, relu: bool = True, batch: int = 2):
    """Two long dense layers; weights are (k, c), as torch's, if `transposed`."""
    rng = np.random.default_rng(0)
    sizes = [("a", C, HIDDEN), ("b", HIDDEN, K)]
    params = {}
    for name, c, k in sizes:
        shape = (k, c) if transposed else (c, k)
        params[f"{name}.weight"] = (rng.standard_normal(shape) / np.sqrt(c)).astype("float32")
        params[f"{name}.bias"] = rng.standard_normal(k).astype("float32")
    x = relax.Var("x", relax.TensorType((batch, C), "float32"))
    variables = {n: relax.Var(n, relax.TensorType(a.shape, "float32")) for n, a in params.items()}
    builder = relax.BlockBuilder()
    with builder.function("main", [x, *variables.values()]):
        with builder.dataflow():
            value = x
            for name, _, _ in sizes:
                weight = variables[f"{name}.weight"]
                if transposed:
                    weight = builder.emit(relax.op.permute_dims(weight))
                value = builder.emit(relax.op.matmul(value, weight))
                value = builder.emit(relax.op.add(value, variables[f"{name}.bias"]))
                if relu:
                    value = builder.emit(relax.op.nn.relu(value))
            out = builder.emit_output(value)
        builder.emit_func_output(out)
    return make_model("dense", builder.get(), params, {"kind": "test", "name": "dense"})


def data(model) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(model.inputs[0].shape).astype("float32")


@pytest.mark.parametrize("transposed", [True, False])
def test_the_same_function(transposed) -> None:
    model, names = network(transposed=transposed), []
    mod, params = dense_to_conv(model.mod, model.params)
    assert "matmul" not in mod.script() and sorted(params) == sorted(model.params)
    assert params["a.weight"].shape == (HIDDEN, C, 1, 1) and params["b.bias"].shape == (1, K, 1, 1)
    x = data(model)
    got = evaluate(mod, params, [x], on_conv=lambda i, name, *rest: names.append(name))
    assert names == ["a", "b"]
    assert relative_error(got[0], evaluate(model.mod, model.params, [x])[0]) < 1e-14


def test_compiled_with_its_epilogue_and_verified(tmp_path) -> None:
    model = network(transposed=True)
    artifact = tvm_winograd.compile(model, output=tmp_path / "a")
    layers = artifact.manifest["modules"][0]["layers"]
    assert [(la["name"], la["epilogue"]) for la in layers] == [
        ("a", "bias+relu"),
        ("b", "bias+relu"),
    ]
    report = verify(artifact, model)
    assert report.ok and len(report.layers) == 2


def test_short_sums_stay() -> None:
    from tvm_winograd.frontend import load_model

    model = load_model("resnet50")
    mod, params = dense_to_conv(model.mod, model.params)
    assert mod is model.mod and params is model.params
