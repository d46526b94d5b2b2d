"""Folding batch normalization keeps the function, and says why where it does not fold."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from tvm_winograd.frontend import load_model
from tvm_winograd.frontend.weights import random_images
from tvm_winograd.passes.fold_batch_norm import fold_batch_norm
from tvm_winograd.truth.evaluate import evaluate
from tvm_winograd.truth.reference import relative_error

K = 6  # filters; unlike every other extent below, so that a wrong axis shows


class Net:
    """A relax function being written, with its parameters."""

    def __init__(self, *input_shape: int) -> None:
        self.rng = np.random.default_rng(0)
        self.x = relax.Var("x", relax.TensorType(input_shape, "float32"))
        self.params: dict[str, np.ndarray] = {}
        self.variables: list[relax.Var] = []
        self.builder = relax.BlockBuilder()

    def param(self, name: str, *shape: int) -> relax.Var:
        scale = 0.3 if len(shape) == 4 else 1.0
        array = (self.rng.standard_normal(shape) * scale).astype("float32")
        self.params[name] = np.abs(array) + 0.5 if name.endswith("var") else array
        variable = relax.Var(name.replace(".", "_"), relax.TensorType(shape, "float32"))
        self.variables.append(variable)
        return variable

    def conv(self, x, name: str = "conv", layout: str = "NCHW", kernel: str = "OIHW", groups=1):
        c = dict(zip(layout, x.ty.shape, strict=True))["C"]
        sizes = {"O": K, "I": int(c) // groups, "H": 3, "W": 3}
        w = self.param(f"{name}.weight", *(sizes[axis] for axis in kernel))
        return self.emit(
            relax.op.nn.conv2d(x, w, 1, 1, 1, groups, data_layout=layout, kernel_layout=kernel)
        )

    def norm(self, x, name: str = "bn", axis: int = 1, channels: int = K, **attrs):
        names = ("weight", "bias", "running_mean", "running_var")
        arrays = [self.param(f"{name}.{n}", channels) for n in names]
        return self.emit(relax.op.nn.batch_norm(x, *arrays, axis=axis, training=False, **attrs)[0])

    def emit(self, expr):
        return self.builder.emit(expr)

    def write(self, body):
        """The module of main(x, params...) = body(net, x)."""
        with self.builder.function("main"):
            with self.builder.dataflow():
                out = self.builder.emit_output(body(self, self.x))
            self.builder.emit_func_output(out, [self.x, *self.variables])
        return self.builder.get()


def fold(body, shape=(2, 4, 7, 5)):
    """(net, params after, report, script after); asserts that the outputs agree."""
    net = Net(*shape)
    mod = net.write(body)
    before = {name: array.copy() for name, array in net.params.items()}
    folded, params, report = fold_batch_norm(mod, net.params)
    relax.analysis.well_formed(folded)
    x = np.random.default_rng(1).standard_normal(shape).astype("float32")
    want = evaluate(mod, before, [x])
    assert relative_error(evaluate(folded, params, [x])[0], want[0]) < 3e-7
    for name, array in before.items():
        np.testing.assert_array_equal(net.params[name], array)  # the caller's are untouched
    return net, params, report, folded.script()


def test_weight_and_bias_by_the_formula() -> None:
    net, params, report, script = fold(lambda n, x: n.norm(n.conv(x), epsilon=1e-3))
    assert list(params) == ["conv.weight", "conv.bias"]
    assert report.folded == ["conv.weight"] and not report.left
    assert "nn.batch_norm" not in script
    p = {name: array.astype("float64") for name, array in net.params.items()}
    scale = p["bn.weight"] / np.sqrt(p["bn.running_var"] + 1e-3)
    bias = p["bn.bias"] - p["bn.running_mean"] * scale
    weight = p["conv.weight"] * scale[:, None, None, None]
    np.testing.assert_array_equal(params["conv.weight"], weight.astype("float32"))
    assert params["conv.bias"].shape == (1, K, 1, 1)
    np.testing.assert_array_equal(params["conv.bias"].ravel(), bias.astype("float32"))


@pytest.mark.parametrize(
    ("layout", "kernel", "groups"),
    [("NHWC", "HWIO", 1), ("NHWC", "OHWI", 1), ("NHWC", "OIHW", 1), ("NCHW", "HWIO", 1),
     ("NCHW", "OIHW", 2)],
)  # fmt: skip
def test_layouts(layout: str, kernel: str, groups: int) -> None:
    shape = {"NCHW": (2, 4, 7, 5), "NHWC": (2, 7, 5, 4)}[layout]
    axis = layout.index("C")
    _, params, report, _ = fold(
        lambda n, x: n.norm(n.conv(x, layout=layout, kernel=kernel, groups=groups), axis=axis),
        shape,
    )
    assert report.folded == ["conv.weight"]
    assert params["conv.bias"].shape[axis] == K


@pytest.mark.parametrize("shape", [(1, K, 1, 1), (K, 1, 1), (1, 1, 1, 1)])
def test_existing_bias_is_taken_along(shape: tuple[int, ...]) -> None:
    def body(n: Net, x):
        return n.norm(n.emit(relax.op.add(n.conv(x), n.param("conv.bias", *shape))))

    _, params, report, _ = fold(body)
    assert report.folded == ["conv.weight"]
    assert list(params) == ["conv.weight", "conv.bias"]


def test_reshaped_bias_on_the_left_and_nhwc() -> None:
    def reshaped(n: Net, x):
        bias = n.emit(relax.op.reshape(n.param("conv.bias", K), (1, K, 1, 1)))
        return n.norm(n.emit(relax.op.add(bias, n.conv(x))))

    def last_axis(n: Net, x):
        conv = n.conv(x, layout="NHWC", kernel="HWIO")
        return n.norm(n.emit(relax.op.add(conv, n.param("conv.bias", K))), axis=3)

    assert fold(reshaped)[2].folded == ["conv.weight"]
    assert fold(last_axis, (2, 7, 5, 4))[2].folded == ["conv.weight"]


def test_bias_name_taken() -> None:
    def body(n: Net, x):
        y = n.norm(n.conv(x))
        return n.emit(relax.op.add(y, n.param("conv.bias", 1, K, 1, 1)))

    assert list(fold(body)[1]) == ["conv.weight", "conv.bias_1", "conv.bias"]


def several_consumers(n: Net, x):
    conv = n.conv(x)
    return n.emit(relax.op.add(n.norm(conv), conv))


def shared_weight(n: Net, x):
    conv = n.conv(x)
    w = n.variables[0]
    return n.emit(relax.op.add(n.norm(conv), n.emit(relax.op.nn.conv2d(x, w, padding=1))))


def pre_activation(n: Net, x):
    return n.conv(n.emit(relax.op.nn.relu(n.norm(x, channels=4))))


def spatial_bias(n: Net, x):
    return n.norm(n.emit(relax.op.add(n.conv(x), n.param("map", 1, K, 7, 5))))


def width_bias(n: Net, x):  # (K,) broadcasts over the width in NCHW
    return n.norm(n.emit(relax.op.add(n.conv(x), n.param("row", K))))


def residual_before(n: Net, x):
    return n.norm(n.emit(relax.op.add(n.conv(x, "a"), n.conv(x, "b"))))


def wrong_axis(n: Net, x):
    return n.norm(n.conv(x), axis=3)


LEFT = [
    (several_consumers, "several consumers", (2, 4, 7, 5)),
    (shared_weight, "shared", (2, 4, 7, 5)),
    (pre_activation, "no convolution", (2, 4, 7, 5)),
    (spatial_bias, "one per channel", (2, 4, 7, 5)),
    (width_bias, "one per channel", (2, 4, 7, K)),
    (residual_before, "not constant", (2, 4, 7, 5)),
    (wrong_axis, "axis 3", (2, 4, 7, K)),
]


@pytest.mark.parametrize(("body", "reason", "shape"), LEFT, ids=[c[0].__name__ for c in LEFT])
def test_left_alone_with_a_reason(body, reason: str, shape: tuple[int, ...]) -> None:
    net, params, report, script = fold(body, shape)
    assert not report.folded
    assert list(report.left) == ["bn.weight"] and reason in report.left["bn.weight"]
    assert "nn.batch_norm" in script
    assert list(params) == list(net.params)


# ResNet-50's own conditioning turns the float32 rounding of w' (6e-8) into 2e-6 at the logits
@pytest.mark.parametrize(
    ("name", "convs", "bound"), [("resnet18", 20, 1e-6), ("resnet50", 53, 6e-6)]
)
def test_resnets_lose_every_batch_norm(name: str, convs: int, bound: float) -> None:
    model = load_model(name)
    mod, params, report = fold_batch_norm(model.mod, model.params)
    assert len(report.folded) == convs and not report.left
    assert "nn.batch_norm" not in mod.script()
    assert len(params) == 2 * convs + 2
    assert int(mod["main"].attrs["num_input"]) == 1
    x = random_images(np.random.default_rng(5), model.inputs[0].shape)
    want = evaluate(model.mod, model.params, [x])[0]
    assert relative_error(evaluate(mod, params, [x])[0], want) < bound
