"""Names of layers and parameters stay apart, however a model calls its weights."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from tvm import relax

import tvm_winograd
from tvm_winograd.check.verify import verify
from tvm_winograd.frontend import load_model
from tvm_winograd.ir.conv_spec import layer_names
from tvm_winograd.passes.params import fold_param_shapes
from tvm_winograd.truth.reference import relative_error

MAP = [1, 8, 6, 6]
WEIGHT, BIAS = (8, 8, 3, 3), (8,)


def conv(*names, **attributes):
    *inputs, out = names
    return helper.make_node("Conv", inputs, [out], pads=[1, 1, 1, 1], **attributes)


def node(op, *names, **attributes):
    *inputs, out = names
    return helper.make_node(op, inputs, [out], **attributes)


CASES = {
    "one weight, two biases": (
        [conv("x", "w", "b1", "t"), conv("t", "w", "b2", "y")],
        {"w": WEIGHT, "b1": BIAS, "b2": BIAS},
        ["w", "w_1"],
    ),
    "one weight, two shapes": (
        [conv("x", "w", "t", strides=[2, 2]), conv("t", "w", "y")],
        {"w": WEIGHT},
        ["w", "w_1"],
    ),
    "the second of one weight ends first": (
        [conv("x", "w", "b1", "s"), conv("x", "w", "b2", "t"), node("Add", "s", "t", "y")],
        {"w": WEIGHT, "b1": BIAS, "b2": BIAS},
        ["w_1", "w"],
    ),
    "weights that differ by .weight": (
        [conv("x", "w", "t"), conv("t", "w.weight", "y")],
        {"w": WEIGHT, "w.weight": WEIGHT},
        ["w", "w_1"],
    ),
    "a stranger called as the bias will be": (
        [conv("x", "w.weight", "b", "t"), node("Mul", "t", "w.bias", "y")],
        {"w.weight": WEIGHT, "b": BIAS, "w.bias": (8, 1, 1)},
        ["w"],
    ),
    "weights that the network computes": (
        [node("Mul", "v", "z", "c"), conv("x", "c", "y")],
        {"v": WEIGHT},
        ["conv0"],
    ),
}


@pytest.mark.parametrize("nodes, shapes, names", CASES.values(), ids=CASES)
def test_network_and_verify_agree(nodes, shapes, names, rng, tmp_path):
    arrays = {n: rng.standard_normal(s).astype("float32") for n, s in shapes.items()}
    given = {"x": MAP, **({"z": [1, 1, 1, 1]} if "v" in shapes else {})}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in given.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(a, n) for n, a in arrays.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = tmp_path / "net.onnx"
    onnx.save(model, path)
    inputs = {n: rng.standard_normal(s).astype("float32") for n, s in given.items()}
    artifact = tvm_winograd.compile(path, output=tmp_path / "out")
    assert [layer["name"] for layer in artifact.manifest["modules"][0]["layers"]] == names
    (want,) = ReferenceEvaluator(model).run(None, inputs)
    assert relative_error(artifact.run(*inputs.values()), want) < 1e-6
    report = verify(artifact, load_model(path))
    assert report.ok and sorted(r.name for r in report.layers) == sorted(names)


def test_layer_names():
    weights = ["a.weight", "a.weight", "", "a", "a_1.weight"]
    assert layer_names(weights) == ["a", "a_1", "conv2", "a_2", "a_1_1"]


def test_two_views_of_one_parameter_with_the_same_shape(rng):
    value = rng.standard_normal((4, 4)).astype("float32")
    x, w = (relax.Var(n, relax.TensorType((4, 4), "float32")) for n in "xw")
    builder = relax.BlockBuilder()
    with builder.function("main", [x, w], attrs={"num_input": 1}):
        with builder.dataflow():
            transposed = builder.emit(relax.op.permute_dims(w))
            reshaped = builder.emit(relax.op.reshape(w, (4, 4)))
            again = builder.emit(relax.op.permute_dims(w))
            total = x
            for view in (transposed, reshaped, again):
                total = builder.emit(relax.op.matmul(total, view))
            out = builder.emit_output(total)
        builder.emit_func_output(out)
    _, params = fold_param_shapes(builder.get(), {"w": value})
    found = {a.tobytes() for a in params.values()}
    assert found == {value.tobytes(), np.ascontiguousarray(value.T).tobytes()}
    assert len(params) == 2
