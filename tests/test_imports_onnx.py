"""ONNX operators that TVM's importer gets wrong or drops, beside onnxruntime; errors of files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tvm_winograd
from tvm_winograd.errors import ModelError
from tvm_winograd.frontend import load_model, onnx_import
from tvm_winograd.truth.evaluate import evaluate

RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 4, 8, 9)).astype("float32")
SPREAD = np.array([[-np.inf, np.inf, -7.5, 7.5, -1, 0, np.nan]], "float32")


def f32(*values) -> np.ndarray:
    return np.array(values, "float32")


def node(op: str, *inputs: str, outputs=("y",), **attributes):
    return helper.make_node(op, ["x", *inputs], list(outputs), "the_node", **attributes)


def save(path: Path, nodes, opset: int, x=X, arrays=None, outputs=("y",), shapes=None) -> Path:
    graph = helper.make_graph(
        nodes if isinstance(nodes, list) else [nodes],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, list(x.shape))],
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
            for name, shape in zip(outputs, shapes or [None] * len(outputs), strict=True)
        ],
        [numpy_helper.from_array(a, n) for n, a in (arrays or {}).items()],
    )
    imports = [helper.make_opsetid("", opset)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=8), path)
    return path


RIGHT = {
    "Upsample-7": (node("Upsample", mode="nearest", scales=[1.0, 1, 2, 3]), 7, {}),
    "Upsample-9": (node("Upsample", "s", mode="nearest"), 9, {"s": f32(1, 1, 2, 2)}),
    "Upsample-9 linear": (node("Upsample", "s", mode="linear"), 9, {"s": f32(1, 1, 2, 2)}),
    "Resize-10": (node("Resize", "s", mode="nearest"), 10, {"s": f32(1, 1, 2, 2)}),
    "Resize axes": (
        node("Resize", "", "", "n", axes=[3, 2], mode="linear"),
        19,
        {"n": np.array([5, 4])},
    ),
    "Resize not larger": (
        node("Resize", "", "", "n", axes=[2, 3], keep_aspect_ratio_policy="not_larger"),
        19,
        {"n": np.array([16, 50])},
    ),
    "Slice-9": (node("Slice", starts=[1, -3], ends=[100, -1], axes=[1, -1]), 9, {}),
    "Slice-1": (node("Slice", starts=[0, 1], ends=[1, -2]), 1, {}),
    "ReduceL1 of nothing": (node("ReduceL1", noop_with_empty_axes=1), 18, {}),
    "ReduceL2 of nothing": (node("ReduceL2", noop_with_empty_axes=1), 18, {}),
    "ReduceSumSquare of nothing": (node("ReduceSumSquare", noop_with_empty_axes=1), 18, {}),
    "ReduceSumSquare of one": (
        node("ReduceSumSquare", "a", noop_with_empty_axes=1),
        18,
        {"a": np.array([2])},
    ),
    "Resize one pixel": (
        node("Resize", "", "", "n", mode="linear", coordinate_transformation_mode="align_corners"),
        13,
        {"n": np.array([2, 4, 1, 5])},
    ),
    "ConvTranspose upper": (
        node("ConvTranspose", "w", strides=[2, 2], output_shape=[16, 18], auto_pad="SAME_UPPER"),
        17,
        {"w": f32(*RNG.standard_normal(108)).reshape(4, 3, 3, 3)},
    ),
    "ConvTranspose lower": (
        node("ConvTranspose", "w", strides=[2, 2], output_shape=[16, 18], auto_pad="SAME_LOWER"),
        17,
        {"w": f32(*RNG.standard_normal(108)).reshape(4, 3, 3, 3)},
    ),
    "ConvTranspose larger": (
        node("ConvTranspose", "w", strides=[2, 2], output_shape=[18, 20]),
        17,
        {"w": f32(*RNG.standard_normal(108)).reshape(4, 3, 3, 3)},
    ),
    "PRelu-9": (node("PRelu", "s"), 9, {"s": f32(0.1, 0.2, -3, 1).reshape(4, 1, 1)}),
    "Clip of one element": (node("Clip", "lo", "hi"), 11, {"lo": f32(0), "hi": f32(6)}),
    "Pad with one element": (
        node("Pad", "p", "v"),
        11,
        {"p": np.array([0, 0, 1, 2, 0, 0, 0, 1]), "v": f32(3)},
    ),
    "Pad reflect": (
        node("Pad", "p", mode="reflect"),
        13,
        {"p": np.array([0, 0, 1, 2, 0, 0, 3, 1])},
    ),
    "Pad cuts": (node("Pad", "p"), 13, {"p": np.array([0, 0, -1, 2, 0, 0, 0, -3])}),
    "MaxPool": (node("MaxPool", outputs=("y", "unread"), kernel_shape=[2, 2]), 12, {}),
    "Pow": (node("Pow", "e"), 17, {"e": np.array(2)}),
    "Tile": (node("Tile", "r"), 13, {"r": np.array([7, 1, 4, 8])}),
    "Gather": (node("Gather", "i", axis=1), 13, {"i": np.array([[0, -1], [-4, 2]])}),
    "ScatterElements": (
        node("ScatterElements", "i", "u", axis=3),
        16,
        {"i": np.full((2, 4, 8, 1), -2), "u": np.ones((2, 4, 8, 1), "float32")},
    ),
    "Celu": (node("Celu", alpha=2.0), 12, {}),
    "LpNormalization": (node("LpNormalization", axis=1, p=1), 17, {}),
    "Trilu": (node("Trilu", "k", upper=0), 14, {"k": np.array(-1)}),
}


@pytest.mark.parametrize("name", RIGHT)
def test_as_onnxruntime_computes_it(name: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    nodes, opset, arrays = RIGHT[name]
    model = load_model(save(tmp_path / "m.onnx", nodes, opset, arrays=arrays))
    (want,) = model.original([X])
    (got,) = evaluate(model.mod, model.params, [X])
    assert got.shape == want.shape and np.allclose(got, want, rtol=1e-5, atol=1e-5)


def test_a_slope_of_opset_6_is_for_channels(tmp_path: Path) -> None:
    slope = f32(0.1, 0.2, -3, 1)
    model = load_model(save(tmp_path / "m.onnx", node("PRelu", "s"), 6, arrays={"s": slope}))
    (got,) = evaluate(model.mod, model.params, [X])
    assert np.allclose(got, np.where(X < 0, X * slope[:, None, None], X))


def test_statistics_of_layer_normalization(tmp_path: Path) -> None:
    names = ("y", "mean", "inverse")
    nodes = node("LayerNormalization", "s", outputs=names, axis=-2)
    arrays = {"s": np.ones((8, 9), "float32")}
    model = load_model(save(tmp_path / "m.onnx", nodes, 17, arrays=arrays, outputs=names))
    _, mean, inverse = evaluate(model.mod, model.params, [X])
    assert np.allclose(mean, X.mean((2, 3), keepdims=True), atol=1e-6)
    assert np.allclose(inverse, 1 / np.sqrt(X.var((2, 3), keepdims=True) + 1e-5), rtol=1e-5)


def test_mod_has_the_sign_of_the_divisor_also_at_infinity(tmp_path: Path) -> None:
    for divisor in (np.inf, -np.inf, 2.5, -2.5):
        path = save(tmp_path / "m.onnx", node("Mod", "d"), 28, x=SPREAD, arrays={"d": f32(divisor)})
        model = load_model(path)
        with np.errstate(invalid="ignore"):
            (got,) = evaluate(model.mod, model.params, [SPREAD])
            assert np.array_equal(got, np.mod(SPREAD, f32(divisor)), equal_nan=True)


WEIGHT = {"w": np.zeros((3, 4, 3, 3), "float32")}
REFUSED = {
    "an attribute that is not read": (
        node("IsInf", detect_negative=0),
        20,
        {},
        r"IsInf \(node 'the_node'\) with detect_negative=0",
    ),
    "RoiAlign max": (
        node("RoiAlign", "r", "b", mode="max", output_height=2, output_width=2),
        16,
        {"r": np.zeros((1, 4), "float32"), "b": np.array([0])},
        r"RoiAlign \(node 'the_node'\).*mode=max",
    ),
    "an index outside": (
        node("Gather", "i", axis=1),
        13,
        {"i": np.array([4])},
        r"Gather \(node 'the_node'\).*4 in dimensions of \[4\]",
    ),
    "a kept ratio without whole sizes": (
        node("Resize", "", "", "n", axes=[2, 3], keep_aspect_ratio_policy="not_larger"),
        19,
        {"n": np.array([13, 5])},
        r"Resize \(node 'the_node'\).*no whole sizes",
    ),
    "a random one": (node("RandomNormalLike"), 17, {}, r"RandomNormalLike \(node 'the_node'\)"),
    "no fixed size": (node("Unique"), 11, {}, r"Unique \(node 'the_node'\)"),
    "kernel_shape": (
        node("Conv", "w", kernel_shape=[5, 5]),
        17,
        WEIGHT,
        r"Conv \(node 'the_node'\) has kernel_shape \[5, 5\], but a weight of \[3, 4, 3, 3\]",
    ),
    "pads": (node("Conv", "w", pads=[1, 1]), 17, WEIGHT, "2 numbers in pads, 4 are needed"),
    "strides": (node("Conv", "w", strides=[0, 1]), 17, WEIGHT, r"strides \[0, 1\]: at least 1"),
    "an unknown attribute": (node("Relu", wrong=1), 17, {}, "no valid ONNX model.*wrong"),
    "a value made twice": (
        [node("Relu"), helper.make_node("Neg", ["x"], ["y"], "again")],
        17,
        {},
        "no valid ONNX model",
    ),
    "a value never made": ([helper.make_node("Neg", ["z"], ["y"])], 17, {}, "no valid ONNX model"),
    "an opset to come": (node("Relu"), 99, {}, "opset 99.*export it for one of them"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_operator_and_node(name: str, tmp_path: Path) -> None:
    nodes, opset, arrays, words = REFUSED[name]
    with pytest.raises(ModelError, match=rf"(?s){words}") as caught:
        load_model(save(tmp_path / "m.onnx", nodes, opset, arrays=arrays))
    assert "batch" not in str(caught.value)  # no hint that does not apply


def test_declared_outputs_are_compared(tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", node("Relu"), 17, shapes=[[2, 4, 8, 10]])
    with pytest.raises(ModelError, match=r"'y' is declared as \[2, 4, 8, 10\]"):
        load_model(path)


def test_a_declaration_of_another_rank_is_noted_if_it_is_open(tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", node("Relu"), 17, shapes=[[1, "length"]])
    said: list[str] = []
    tvm_winograd.compile(path, output=tmp_path / "a", progress=said.append)
    assert "note: output 'y' is declared as [1, ?]; it is [2, 4, 8, 9]" in said


def test_a_shape_or_dtype_that_is_misread_is_noticed(tmp_path: Path, monkeypatch) -> None:
    from tvm import relax

    path = save(
        tmp_path / "m.onnx",
        [node("Relu", outputs=("a",)), helper.make_node("Neg", ["a"], ["y"])],
        17,
    )
    for wrong in (
        lambda n: relax.op.sum(n.inputs[0], 1),
        lambda n: relax.op.astype(n.inputs[0], "float64"),
    ):
        monkeypatch.setitem(onnx_import.CONVERT, "Relu", wrong)
        with pytest.raises(
            ModelError, match=r"Relu \(node 'the_node'\) gives 'a' as float32 \[2, 4"
        ):
            load_model(path)


def test_an_if_whose_condition_is_known(tmp_path: Path) -> None:
    def branch(op: str):
        out = helper.make_tensor_value_info(op, TensorProto.FLOAT, None)
        return helper.make_graph([helper.make_node(op, ["x"], [op])], op, [], [out])

    nodes = helper.make_node(
        "If", ["c"], ["y"], then_branch=branch("Neg"), else_branch=branch("Abs")
    )
    for condition, want in ((True, -X), (False, abs(X))):
        path = save(tmp_path / "m.onnx", nodes, 17, arrays={"c": np.array(condition)})
        model = load_model(path)
        assert np.allclose(evaluate(model.mod, model.params, [X])[0], want)
