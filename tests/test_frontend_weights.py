"""Weights: calibrated random ones, and files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from test_frontend import BOTTLENECK, DIGITS, images, output

from tvm_winograd.errors import ModelError
from tvm_winograd.frontend import load_model, weights
from tvm_winograd.frontend.builtin import builtin_model
from tvm_winograd.truth.evaluate import evaluate
from tvm_winograd.truth.peers import torch_conv
from tvm_winograd.truth.reference import relative_error


@pytest.mark.parametrize("name", ["resnet18", "resnet152"])
def test_calibrated_activations_stay_alive(name: str) -> None:
    model = load_model(name, batch=2)
    deviations = {}

    def record(index, conv, spec, x, w, y) -> None:
        deviations[conv] = y.std()

    logits = output(model, images(model), dtype="float32", conv=torch_conv, on_conv=record)
    assert 0.1 < min(deviations.values()) and max(deviations.values()) < 50
    assert relative_error(logits[0], logits[1]) > 0.05
    assert logits.std() > 0.1


def test_calibration_does_not_see_the_last_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another machine sums in another order: the statistics must come out the same."""
    want = builtin_model(BOTTLENECK, seed=7).params
    rng = np.random.default_rng(0)

    def other_machine(mod, params, inputs, **hooks):
        from tvm_winograd.truth.reference import conv2d

        def conv(spec, x, w):
            y = conv2d(spec, x, w)
            return y * (1 + 1e-14 * rng.standard_normal(y.shape))

        return evaluate(mod, params, inputs, conv=conv, **hooks)

    monkeypatch.setattr(weights, "evaluate", other_machine)
    got = builtin_model(BOTTLENECK, seed=7).params
    for name, array in want.items():
        np.testing.assert_array_equal(got[name], array, err_msg=name)
    other = builtin_model(BOTTLENECK, seed=8).params["fc.weight"]
    assert not np.array_equal(other, want["fc.weight"])


@pytest.mark.parametrize("suffix", [".safetensors", ".npz"])
def test_weights_file(tmp_path: Path, suffix: str) -> None:
    params = builtin_model(DIGITS, seed=5).params
    arrays = {**params, "bn1.num_batches_tracked": np.array(7)}
    path = tmp_path / f"w{suffix}"
    (save_file if suffix == ".safetensors" else lambda a, p: np.savez(p, **a))(arrays, path)
    model = builtin_model(DIGITS, weights=path)
    assert list(model.params) == list(params)
    for name, array in params.items():
        np.testing.assert_array_equal(model.params[name], array)
    assert model.source["weights"]["file"] == path.name and "seed" not in model.source
    assert len(model.source["weights"]["sha256"]) == 64


def test_wrong_weights_are_listed(tmp_path: Path) -> None:
    params = dict(builtin_model(DIGITS).params)
    params["extra"] = params.pop("bn1.bias")
    params["fc.weight"] = params["fc.weight"].T
    params["fc.bias"] = params["fc.bias"].astype("float16")
    path = tmp_path / "w.npz"
    np.savez(path, **params)
    with pytest.raises(ModelError) as error:
        builtin_model(DIGITS, weights=path)
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
