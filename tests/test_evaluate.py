"""The numpy interpreter against torch, operator by operator, and its hooks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional
from tvm import relax

from tvm_winograd.errors import InputError, UnsupportedError
from tvm_winograd.ir.conv_spec import conv2d_spec, weight_to_oihw
from tvm_winograd.shapes import ConvSpec
from tvm_winograd.truth.evaluate import evaluate
from tvm_winograd.truth.peers import torch_conv
from tvm_winograd.truth.reference import conv2d, from_nchw, relative_error

nn = relax.op.nn


def var(name: str, *shape: int) -> relax.Var:
    return relax.Var(name, relax.TensorType(shape, "float32"))


def module(variables: list, *calls):
    """main(variables): each call made from the previous result (the first from all variables)."""
    builder = relax.BlockBuilder()
    with builder.function("main", variables):
        with builder.dataflow():
            value = builder.emit(calls[0](*variables))
            for call in calls[1:]:
                value = builder.emit(call(value))
            out = builder.emit_output(value)
        builder.emit_func_output(out)
    return builder.get()


def run(call, *arrays: np.ndarray) -> np.ndarray:
    """`call` of relax variables shaped like the arrays, evaluated in float64."""
    variables = [var(f"x{i}", *a.shape) for i, a in enumerate(arrays)]
    return evaluate(module(variables, call), {}, arrays)[0]


def data(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def t64(x: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(x).double()


X = data(2, 6, 9, 7)
# (name, relax call, torch function): odd and unequal map sizes so that swapped axes show
UNARY = [
    ("relu", nn.relu, torch.relu),
    ("sigmoid", relax.op.sigmoid, torch.sigmoid),
    ("clip", lambda x: relax.op.clip(x, 0, 0.5), lambda x: x.clip(0, 0.5)),
    ("softmax", lambda x: nn.softmax(x, axis=1), lambda x: x.softmax(1)),
    ("max_pool", lambda x: nn.max_pool2d(x, (3, 3), (2, 2), (1, 1)),
     lambda x: functional.max_pool2d(x, 3, 2, 1)),
    ("max_pool_ceil", lambda x: nn.max_pool2d(x, (2, 2), (2, 2), ceil_mode=True),
     lambda x: functional.max_pool2d(x, 2, 2, ceil_mode=True)),
    ("max_pool_ceil_pad", lambda x: nn.max_pool2d(x, (2, 2), (2, 2), (1, 1), ceil_mode=True),
     lambda x: functional.max_pool2d(x, 2, 2, 1, ceil_mode=True)),
    ("max_pool_dilated", lambda x: nn.max_pool2d(x, (2, 2), (1, 1), dilation=(3, 3)),
     lambda x: functional.max_pool2d(x, 2, 1, dilation=3)),
    ("avg_pool", lambda x: nn.avg_pool2d(x, (3, 2), (2, 1), (1, 0)),
     lambda x: functional.avg_pool2d(x, (3, 2), (2, 1), (1, 0), count_include_pad=False)),
    ("avg_pool_pad", lambda x: nn.avg_pool2d(x, (3, 3), (2, 2), (1, 1), count_include_pad=True),
     lambda x: functional.avg_pool2d(x, 3, 2, 1)),
    ("avg_pool_ceil", lambda x: nn.avg_pool2d(x, (3, 3), (2, 4), (1, 1), ceil_mode=True,
                                              count_include_pad=True),
     lambda x: functional.avg_pool2d(x, 3, (2, 4), 1, ceil_mode=True)),
    ("adaptive", lambda x: nn.adaptive_avg_pool2d(x, (4, 3)),
     lambda x: functional.adaptive_avg_pool2d(x, (4, 3))),
    ("mean", lambda x: relax.op.mean(x, [2, 3], keepdims=True), lambda x: x.mean((2, 3), True)),
    ("mean_all", lambda x: relax.op.mean(x), lambda x: x.mean()),
    ("reshape", lambda x: relax.op.reshape(x, (2, -1)), lambda x: x.reshape(2, -1)),
    ("flatten", relax.op.flatten, torch.flatten),
    ("permute", lambda x: relax.op.permute_dims(x, (0, 2, 3, 1)), lambda x: x.permute(0, 2, 3, 1)),
    ("expand", lambda x: relax.op.expand_dims(x, [1]), lambda x: x.unsqueeze(1)),
    ("squeeze", lambda x: relax.op.squeeze(relax.op.expand_dims(x, [1]), [1]), lambda x: x),
    ("concat", lambda x: relax.op.concat([x, x], axis=1), lambda x: torch.cat([x, x], 1)),
    ("split", lambda x: relax.TupleGetItem(relax.op.split(x, 3, axis=1), 1), lambda x: x[:, 2:4]),
    ("split_at", lambda x: relax.TupleGetItem(relax.op.split(x, [1, 4], axis=1), 1),
     lambda x: x[:, 1:4]),
    ("dropout", lambda x: relax.TupleGetItem(nn.dropout(x, 0.5), 0), lambda x: x),
    ("pad", lambda x: nn.pad(x, (0, 0, 0, 0, 1, 2, 3, 0)),
     lambda x: functional.pad(x, (3, 0, 1, 2))),
    ("constant", lambda x: relax.op.add(x, relax.const(np.float32(2.5))), lambda x: x + 2.5),
    ("zeros", lambda x: relax.op.add(x, relax.op.zeros((9, 7), "float32")), lambda x: x),
    ("ones_like", lambda x: relax.op.add(x, relax.op.ones_like(x)), lambda x: x + 1),
    ("full", lambda x: relax.op.add(x, relax.op.full((1, 7), relax.const(1.5), "float32")),
     lambda x: x + 1.5),
    ("full_like", lambda x: relax.op.full_like(x, relax.const(2.0)), lambda x: x * 0 + 2),
    ("arange", lambda x: relax.op.multiply(x, relax.op.arange(1, 15, 2, "float32")),
     lambda x: x * torch.arange(1, 15, 2)),
    ("flip", lambda x: relax.op.flip(x, 2), lambda x: x.flip(2)),
    ("stack", lambda x: relax.op.stack([x, x], 1), lambda x: torch.stack([x, x], 1)),
    ("sign", relax.op.sign, torch.sign),
    ("mod", lambda x: relax.op.mod(x, relax.const(0.75)), lambda x: torch.fmod(x, 0.75)),
    ("floor_mod", lambda x: relax.op.floor_mod(x, relax.const(0.75)), lambda x: x.remainder(0.75)),
    ("prelu", lambda x: nn.prelu(x, relax.const(np.arange(6, dtype="float32")), 1),
     lambda x: functional.prelu(x, torch.arange(6).double())),
    ("min", lambda x: relax.op.min(x, [1]), lambda x: x.amin(1)),
    ("prod", lambda x: relax.op.prod(x, [3]), lambda x: x.prod(3)),
    ("variance", lambda x: relax.op.variance(x, [2, 3]), lambda x: x.var((2, 3), correction=0)),
    ("std", lambda x: relax.op.std(x, [1]), lambda x: x.std(1, correction=0)),
    ("erf", relax.op.erf, torch.erf),
    ("square", relax.op.square, torch.square),
    ("floor", relax.op.floor, torch.floor),
    ("ceil", relax.op.ceil, torch.ceil),
    ("round", lambda x: relax.op.round(relax.op.multiply(x, relax.const(np.float32(2.5)))),
     lambda x: (x * 2.5).round()),
    ("gelu", nn.gelu, functional.gelu),
    ("gelu_tanh", nn.gelu_tanh, lambda x: functional.gelu(x, approximate="tanh")),
    ("log_softmax", lambda x: nn.log_softmax(x, axis=1), lambda x: x.log_softmax(1)),
    ("slice", lambda x: relax.op.strided_slice(x, [2, 3], [1, 0], [8, 6], [2, 1]),
     lambda x: x[:, :, 1:8:2, :6]),
    ("tile", lambda x: relax.op.tile(x, [1, 2, 1, 3]), lambda x: x.repeat(1, 2, 1, 3)),
]  # fmt: skip


@pytest.mark.parametrize(("call", "torch_call"), [c[1:] for c in UNARY], ids=[c[0] for c in UNARY])
def test_operator_matches_torch(call, torch_call) -> None:
    want = torch_call(t64(X)).numpy()
    got = run(call, X)
    assert got.shape == want.shape
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, want, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("keep", [False, True])
def test_indices_of_extremes(keep: bool) -> None:
    for call, want in ((relax.op.argmax, torch.argmax), (relax.op.argmin, torch.argmin)):
        got = run(lambda x, call=call: call(x, 1, keep), X)
        np.testing.assert_array_equal(got, want(t64(X), 1, keepdim=keep).numpy())
    got = run(lambda x: relax.op.astype(relax.op.argmax(x, 1, keep), "float32"), X)
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, torch.argmax(t64(X), 1, keepdim=keep).numpy())


def test_normalizations_match_torch() -> None:
    scale, shift = data(6, seed=1), data(6, seed=2)
    x, g, b = t64(X), t64(scale), t64(shift)
    got = run(lambda x, g, b: nn.group_norm(x, g, b, 3, 1, [2, 3]), X, scale, shift)
    np.testing.assert_allclose(got, functional.group_norm(x, 3, g, b).numpy(), rtol=1e-12)
    got = run(lambda x, g, b: nn.instance_norm(x, g, b, 1, [2, 3]), X, scale, shift)
    want = functional.instance_norm(x, weight=g, bias=b)
    np.testing.assert_allclose(got, want.numpy(), rtol=1e-12)
    rows = np.ascontiguousarray(X.transpose(0, 2, 3, 1))
    got = run(lambda x, g, b: nn.layer_norm(x, g, b, [3]), rows, scale, shift)
    want = functional.layer_norm(t64(rows), (6,), g, b)
    np.testing.assert_allclose(got, want.numpy(), rtol=1e-12)


def test_binary_operators_broadcast() -> None:
    a, b = data(2, 3, 4), data(3, 1, seed=1)
    for call, numpy_call in [
        (relax.op.add, np.add),
        (relax.op.subtract, np.subtract),
        (relax.op.multiply, np.multiply),
        (relax.op.divide, np.divide),
    ]:
        np.testing.assert_array_equal(
            run(call, a, b), numpy_call(a.astype("float64"), b.astype("float64"))
        )
    np.testing.assert_allclose(
        run(relax.op.matmul, a, data(4, 5)), a.astype("float64") @ data(4, 5).astype("float64")
    )


def test_pools_know_their_layout() -> None:
    nhwc = np.ascontiguousarray(X.transpose(0, 2, 3, 1))
    for op in (nn.max_pool2d, nn.avg_pool2d):
        got = run(lambda x, op=op: op(x, (3, 3), (2, 2), (1, 1), layout="NHWC"), nhwc)
        want = run(lambda x, op=op: op(x, (3, 3), (2, 2), (1, 1)), X)
        np.testing.assert_allclose(got.transpose(0, 3, 1, 2), want, rtol=1e-14)
    got = run(lambda x: nn.adaptive_avg_pool2d(x, (2, 2), layout="NHWC"), nhwc)
    np.testing.assert_allclose(
        got.transpose(0, 3, 1, 2), run(lambda x: nn.adaptive_avg_pool2d(x, (2, 2)), X), rtol=1e-14
    )


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("kernel_layout", ["OIHW", "HWIO", "OHWI"])
def test_conv_in_every_layout(layout: str, kernel_layout: str) -> None:
    """Stride 2, dilation 2, two groups, uneven padding: everything that can be mixed up."""
    x, w = data(2, 6, 11, 8), data(4, 3, 3, 3, seed=1)
    padding = (1, 2, 0, 3)
    arrays = [from_nchw(x, layout), w.transpose(["OIHW".index(a) for a in kernel_layout])]
    specs: list[ConvSpec] = []

    def record(index, name, spec, x_, w_, y) -> None:
        specs.append(spec)
        np.testing.assert_array_equal(w_, w)
        assert (index, name) == (0, "conv0") and y.shape == spec.output_shape

    mod = module(
        [var("x", *arrays[0].shape), var("w", *arrays[1].shape)],
        lambda a, b: nn.conv2d(a, b, (2, 2), padding, (2, 2), 2, layout, kernel_layout),
    )
    got = evaluate(mod, {}, arrays, on_conv=record)[0]
    padded = functional.pad(t64(x), (2, 3, 1, 0))
    want = functional.conv2d(padded, t64(w), stride=2, dilation=2, groups=2).numpy()
    np.testing.assert_allclose(got, from_nchw(want, layout), rtol=1e-12, atol=1e-12)
    spec = ConvSpec(
        n=2, c=6, h=11, w=8, k=4, stride=2, padding=padding, dilation=2, groups=2, layout=layout
    )
    assert specs == [spec]
    assert relative_error(torch_conv(spec, arrays[0], w), got) < 1e-6


@pytest.mark.parametrize(
    ("kwargs", "word"),
    [({"out_layout": "NHWC"}, "layout"), ({"out_dtype": "float64"}, "float64")],
)
def test_conv_spec_refuses(kwargs: dict, word: str) -> None:
    x, w = var("x", 1, 4, 8, 8), var("w", 4, 4, 3, 3)
    with pytest.raises(UnsupportedError, match=word):
        conv2d_spec(nn.conv2d(x, w, **kwargs))


def test_conv_spec_refuses_dynamic_shapes() -> None:
    from tvm import tirx

    x = relax.Var("x", relax.TensorType((tirx.Var("batch", "int64"), 4, 8, 8), "float32"))
    with pytest.raises(UnsupportedError, match="--batch"):
        conv2d_spec(nn.conv2d(x, var("w", 4, 4, 3, 3)))


def test_weight_to_oihw() -> None:
    assert weight_to_oihw(np.zeros((3, 4, 2, 5)), "HWIO").shape == (5, 2, 3, 4)


@pytest.mark.parametrize("axis", [1, 3])
def test_batch_norm_and_its_hook(axis: int) -> None:
    x = data(2, 5, 3, 5)
    params = {n: data(5, seed=i) for i, n in enumerate(("gamma", "beta", "mean"))}
    params["variance"] = np.abs(data(5, seed=9)) + 0.5
    variables = [var("x", *x.shape), *(var(n, 5) for n in params)]
    mod = module(variables, lambda *v: nn.batch_norm(*v, axis=axis, training=False)[0])
    shape = [-1 if i == axis else 1 for i in range(4)]
    g, b, m, v = (p.astype("float64").reshape(shape) for p in params.values())
    np.testing.assert_allclose(
        evaluate(mod, params, [x])[0], (x - m) / np.sqrt(v + 1e-5) * g + b, rtol=1e-12
    )
    seen = []

    def standardize(names, rows):
        seen.append((names, rows.shape[-1]))
        flat = rows.reshape(-1, 5)
        return flat.mean(0), flat.var(0)

    y = evaluate(mod, params, [x], on_batch_norm=standardize)[0]
    others = tuple(i for i in range(4) if i != axis)
    np.testing.assert_allclose(y.mean(others), params["beta"], atol=1e-12)
    assert seen == [(tuple(params), 5)]


def test_tuple_results_and_names() -> None:
    builder = relax.BlockBuilder()
    x, w = var("x", 1, 4, 6, 6), var("w", 8, 4, 3, 3)
    with builder.function("main", [x, w]):
        with builder.dataflow():
            y = builder.emit(nn.conv2d(x, w, padding=1))
            out = builder.emit_output(relax.Tuple([y, x]))
        builder.emit_func_output(out)
    arrays, names = (data(1, 4, 6, 6), data(8, 4, 3, 3)), []
    got = evaluate(
        builder.get(), {"stem.weight": arrays[1]}, arrays[:1], dtype="float32", conv=torch_conv,
        on_conv=lambda index, name, *_: names.append(name),
    )  # fmt: skip
    assert names == ["stem"] and [g.dtype for g in got] == [np.float32] * 2
    spec = ConvSpec(n=1, c=4, h=6, w=6, k=8)
    assert relative_error(got[0], conv2d(spec, *arrays)) < 1e-6
    np.testing.assert_array_equal(got[1], arrays[0])


def test_errors_name_what_is_wrong() -> None:
    with pytest.raises(UnsupportedError, match=r"relax\.cumsum.*supported"):
        run(lambda x: relax.op.cumsum(x, 1), X)
    with pytest.raises(InputError, match="takes"):
        evaluate(module([var("x", 2, 3)], nn.relu), {}, [data(3, 2)])
    with pytest.raises(InputError, match="2 inputs"):
        evaluate(module([var("x", 2, 3)], nn.relu), {}, [data(2, 3)] * 2)
