"""Every operator that works on maps in another order: float64 results before and after."""

import numpy as np
import pytest
from tvm import relax

from tvm_winograd.choose.select import choose
from tvm_winograd.errors import UnsupportedError
from tvm_winograd.gpu import gpu_for
from tvm_winograd.passes.choose_layout import choose_layout
from tvm_winograd.passes.convert_layout import convert_layout, transposed_bytes
from tvm_winograd.truth.evaluate import evaluate

op, nn = relax.op, relax.op.nn
SHAPE = (2, 6, 8, 4)  # what a body gets: NHWC
CHANNELS = np.linspace(0.5, 2, 4).astype("float32")


def nhwc_conv(e, x, w):
    return e(nn.conv2d(x, w, padding=1, data_layout="NHWC", kernel_layout="OIHW"))


TAPS = np.linspace(-1, 1, 64).reshape(4, 2, 2, 4).astype("float32")  # of a transposed convolution


def fields(pair):
    return [relax.TupleGetItem(pair, i) for i in (1, 0)]


def swapped(x):
    return op.permute_dims(x, [0, 2, 1, 3])


def flat(*maps):
    return [op.reshape(m, (2, -1)) for m in maps]


# body(emit, x, c): x an NHWC map, c a parameter of its 4 channels; and the transposes that are left
# where the convolutions around it are to work on NCHW: one at each end, where that is a map
BODIES = {
    "sum of broadcasts": (lambda e, x, c: op.add(op.multiply(x, c), e(op.abs(c))), 2),
    "numbers": (lambda e, x, c: op.clip(op.divide(x, relax.const(3.0)), -1, 1), 2),
    "constants": (lambda e, x, c: op.maximum(x, relax.const(CHANNELS)), 2),
    "choice": (lambda e, x, c: op.where(op.less(x, c), x, op.negative(x)), 2),
    "activations": (lambda e, x, c: op.add(nn.silu(x), op.tanh(nn.leakyrelu(x))), 2),
    "maximum of windows": (lambda e, x, c: nn.max_pool2d(x, 2, 2, layout="NHWC"), 2),
    "average of windows": (
        lambda e, x, c: nn.avg_pool2d(x, 3, 1, 1, count_include_pad=False, layout="NHWC"), 2
    ),
    "adaptive average": (lambda e, x, c: nn.adaptive_avg_pool2d(x, (3, 2), layout="NHWC"), 2),
    "resized": (lambda e, x, c: op.image.resize2d(x, (9, 5), layout="NHWC"), 2),
    "padded": (lambda e, x, c: nn.pad(x, [0, 0, 1, 2, 0, 3, 0, 0]), 2),
    "softmax over channels": (lambda e, x, c: nn.softmax(x, axis=-1), 2),
    "excitation": (lambda e, x, c: op.multiply(x, op.sigmoid(op.mean(x, [1, 2], True))), 2),
    "mean over maps": (lambda e, x, c: op.mean(x, [1, 2]), 1),
    "mean of channels": (lambda e, x, c: op.mean(x, -1), 1),
    "flattened": (lambda e, x, c: op.reshape(x, (2, -1)), 2),
    "two orders of one tensor": (lambda e, x, c: op.add(*map(e, flat(x, e(swapped(x))))), 3),
    "concatenated": (lambda e, x, c: op.concat([x, op.exp(x)], 3), 2),
    "channels apart": (
        lambda e, x, c: op.subtract(*map(e, fields(e(op.split(x, 2, 3))))), 2
    ),
    "a tuple": (lambda e, x, c: op.concat(e(op.split(x, 2, 1)), 2), 5),
    "transposed convolution": (
        lambda e, x, c: nn.conv2d_transpose(
            x, relax.const(TAPS), 2, data_layout="NHWC", kernel_layout="IHWO"
        ),
        2,
    ),
    "batch norm": (
        lambda e, x, c: relax.TupleGetItem(
            e(nn.batch_norm(x, c, c, c, c, axis=3, training=False)), 0
        ),
        2,
    ),
    "there and back": (
        lambda e, x, c: op.permute_dims(
            e(nn.relu(e(op.permute_dims(x, [0, 3, 1, 2])))), [0, 2, 3, 1]
        ),
        2,
    ),
    "rows and columns swapped": (lambda e, x, c: swapped(x), 3),
}  # fmt: skip


def variables():
    shapes = {"x": SHAPE, "w": (4, 4, 3, 3), "c": (4,)}
    return [relax.Var(n, relax.TensorType(s, "float32")) for n, s in shapes.items()]


def network(body, before, behind):
    """main(x, w, c): convolution, body, convolution."""
    builder = relax.BlockBuilder()
    x, w, c = variables()
    with builder.function("main", [x, w, c], attrs={"num_input": 1}):
        with builder.dataflow():
            y = nhwc_conv(builder.emit, x, w) if before else x
            y = builder.emit(body(builder.emit, y, c))
            y = nhwc_conv(builder.emit, y, w) if behind and list(y.ty.shape)[3:] == [4] else y
            out = builder.emit_output(op.add(y, relax.const(1.0)))
        builder.emit_func_output(out)
    return builder.get()


@pytest.mark.parametrize("ends", [(True, True), (True, False), (False, True)], ids=str)
@pytest.mark.parametrize("name", BODIES)
def test_the_result_stays(name, ends, rng):
    body, transposes = BODIES[name]
    mod = network(body, *ends)
    params = {"w": rng.standard_normal((4, 4, 3, 3)).astype("float32"), "c": CHANNELS}
    x = rng.standard_normal(SHAPE).astype("float32")
    (want,) = evaluate(mod, params, [x])
    for layout in ("NCHW", "NHWC"):
        other = convert_layout(mod, params, layout)
        relax.analysis.well_formed(other)
        (got,) = evaluate(other, params, [x])
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)
        if ends == (True, True) and layout == "NCHW":
            assert len(transposed_bytes(other, params)) == transposes


def test_a_function_of_several_blocks_stays_as_it_is():
    builder = relax.BlockBuilder()
    x, w = variables()[:2]
    with builder.function("main", [x, w], attrs={"num_input": 1}):
        builder.emit_func_output(nhwc_conv(builder.emit, x, w))
    mod = builder.get()
    params = {"w": TAPS}
    assert convert_layout(mod, params, "NCHW") is mod
    same, _, layout = choose_layout(mod, params, gpu_for("sm_90"), gemm)
    assert same is mod and layout.chosen == "NHWC" and "one dataflow block" in layout.reason
    with pytest.raises(UnsupportedError, match="one dataflow block"):
        choose_layout(mod, params, gpu_for("sm_90"), gemm, "NCHW")


def gemm(name, spec, epilogue):
    return choose(spec, epilogue, gpu_for("sm_90"), algorithm="gemm")
