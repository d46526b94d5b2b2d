"""The table of activations: values, text, spellings, undoing, and every kernel's store."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import tvm
from torch.nn import functional
from tvm import te

from tvm_winograd import ConvSpec, Epilogue, TvmWinogradError
from tvm_winograd.activation import ACTIVATIONS, Deployed, parse
from tvm_winograd.truth.reference import relative_error

TEXTS = (
    "relu", "relu6", "silu", "hard_swish", "hard_sigmoid", "leaky_relu(0.1)", "leaky_relu(0)",
    "prelu(0.25)", "prelu(-0.9)", "prelu(3)", "sigmoid", "gelu",
)  # fmt: skip
SPECIAL = np.array([np.inf, -np.inf, np.nan, 0, -0.0, 1e38, -1e38, 3, -3, 6, -6, 90, -90], "f4")


def test_every_entry_is_tested():
    assert {text.split("(")[0] for text in TEXTS} == set(ACTIVATIONS)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("head", ["", "bias+", "bias+residual+"])
def test_text_and_keys(text, head):
    assert parse(text).text == text
    epilogue = Epilogue.from_key(head + text)
    assert (epilogue.key(), epilogue.activation) == (head + text, text)
    assert epilogue == Epilogue("bias" in head, "residual" in head, activation=text)


def test_numbers_are_the_shortest_in_float32():
    assert parse("leaky_relu(0.10000000149011612)").text == "leaky_relu(0.1)"
    assert parse("leaky_relu(1e20)").text == "leaky_relu(1e20)"
    assert Epilogue.from_key("bias+leaky_relu(1e20)").activation == "leaky_relu(1e20)"
    assert parse("leaky_relu(1e-20)").values == (float(np.float32(1e-20)),)


@pytest.mark.parametrize(
    "text", ["mish", "silu(1)", "leaky_relu", "leaky_relu()", "leaky_relu(a)", "prelu(inf)",
             "prelu(nan)", "prelu(1,2)", "relu+relu6", "", "silu ", 1, "leaky_relu(1e99)"]
)  # fmt: skip
def test_other_text_is_refused(text):
    with pytest.raises(TvmWinogradError, match=r"activation"):
        Epilogue(activation=text)


def test_the_short_words_stay():
    assert Epilogue(True, True, True) == Epilogue(bias=True, residual=True, activation="relu")
    assert Epilogue(relu6=True).relu6 and not Epilogue(relu6=True).relu
    assert Epilogue(relu=True, activation="relu").key() == "relu"
    with pytest.raises(TvmWinogradError, match="one activation"):
        Epilogue(relu=True, activation="silu")


def test_integers_take_clips_only():
    spec = ConvSpec(1, 4, 5, 5, 4, dtype="int8")
    assert Epilogue(relu=True).unfit(spec) is None
    assert "gives int32" in str(Epilogue(activation="silu").unfit(spec))


@pytest.fixture(scope="module")
def compiled():
    """Text -> the activation on float32 arrays, as LLVM compiles it."""
    functions = {}

    def run(text, x):
        if text not in functions:
            n = te.var("n")
            data = te.placeholder((n,), "float32", name="X")
            out = te.compute((n,), lambda i: parse(text).tir(data[i]), name="Y")
            functions[text] = tvm.compile(te.create_prim_func([data, out]), target="llvm")
        got = tvm.runtime.empty(x.shape, "float32")
        functions[text](tvm.runtime.tensor(x), got)
        return got.numpy()

    return run


@pytest.mark.parametrize("text", TEXTS)
def test_values(text, compiled):
    """Within a few roundings of float64, which is itself torch's function."""
    rng = np.random.default_rng(0)
    x = np.concatenate([np.linspace(-20, 20, 20001), rng.standard_normal(20000)]).astype("f4")
    with np.errstate(all="raise", under="ignore"):
        want = parse(text).numpy(x.astype("f8"))
    theirs = parse(text).torch(functional, torch.from_numpy(x.astype("f8"))).numpy()
    np.testing.assert_allclose(want, theirs, rtol=1e-7, atol=1e-9)
    got = compiled(text, x)
    assert relative_error(got, want) < 6e-8
    np.testing.assert_allclose(got, want, rtol=4e-7, atol=2e-7)


@pytest.mark.parametrize("text", TEXTS)
def test_special_values(text, compiled):
    """Limits at the infinities, NaN stays NaN (not in max and min), no overflow."""
    applied = parse(text)
    with np.errstate(invalid="ignore"):  # -inf * 0
        got, with_signs = compiled(text, SPECIAL), applied.numpy(SPECIAL.astype("f8"))
    limits = {"sigmoid": (1, 0), "hard_sigmoid": (1, 0), "relu6": (6, 0)}
    name = applied.activation.name
    if name in ("leaky_relu", "prelu") and applied.values[0]:
        limits[name] = (np.inf, -np.inf * np.sign(applied.values[0]))
    if text != "leaky_relu(0)":  # -inf * 0 is nothing
        assert tuple(got[:2]) == limits.get(name, (np.inf, 0))
    if name in ("relu", "relu6"):
        got[2] = np.nan
    assert np.isnan(got[2])
    finite = np.isfinite(with_signs)
    np.testing.assert_allclose(got[finite], with_signs[finite], rtol=4e-7, atol=2e-8)
    theirs = applied.torch(functional, torch.from_numpy(SPECIAL[3:].astype("f8"))).numpy()
    np.testing.assert_allclose(got[3:], theirs, rtol=4e-7, atol=2e-8)


@pytest.mark.parametrize("loudness", [1e-4, 1.0, 300.0])
@pytest.mark.parametrize("text", TEXTS)
def test_undone(text, loudness, compiled):
    """What comes back is the convolution, to less than half of the smallest error limit.

    Hard sigmoid costs most: v + 3 rounds to units of 3.
    """
    y = (np.random.default_rng(1).standard_normal(5000) * loudness).astype("f4")
    conv = Deployed(lambda scale: compiled(text, y * np.float32(scale)), y.astype("f8"))
    assert relative_error(parse(text).undo(conv), y) < 3e-7


@pytest.mark.parametrize("loudness", [1e-3, 1.0, 300.0])
@pytest.mark.parametrize("text", TEXTS)
def test_an_error_is_seen_through_it(text, loudness, compiled):
    """One in 10,000 too much, everywhere or where it is negative, is found by every entry."""
    y = np.random.default_rng(1).standard_normal(5000) * loudness
    for wrong in (y * 1.0001, np.where(y < 0, y * 1.0001, y)):
        rounded = wrong.astype("f4")

        def at(scale, rounded=rounded):
            return compiled(text, rounded * np.float32(scale))

        error = relative_error(parse(text).undo(Deployed(at, y)), y)
        assert error > 2e-5, (text, error)
