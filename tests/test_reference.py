import numpy as np
import pytest

from tvm_winograd import ConvSpec, Epilogue
from tvm_winograd.transforms import cook_toom
from tvm_winograd.truth import reference


def by_definition(spec, x, w):
    """Seven nested loops."""
    x, w = reference.to_nchw(x, spec.layout), w.astype("float64")
    out = np.zeros((spec.n, spec.k, spec.oh, spec.ow))
    top, left, _, _ = spec.padding
    per_c, per_k = spec.c // spec.groups, spec.k // spec.groups
    for n, k, i, j in np.ndindex(out.shape):
        for c, r, s in np.ndindex(per_c, spec.r, spec.s):
            h = i * spec.stride + r * spec.dilation - top
            v = j * spec.stride + s * spec.dilation - left
            if 0 <= h < spec.h and 0 <= v < spec.w:
                out[n, k, i, j] += x[n, k // per_k * per_c + c, h, v] * w[k, c, r, s]
    return reference.from_nchw(out, spec.layout)


@pytest.mark.parametrize(
    "spec",
    [
        ConvSpec(2, 3, 5, 7, 4, padding=(2, 0, 1, 2)),
        ConvSpec(1, 4, 6, 5, 6, r=3, s=1, stride=2, padding=(3, 3, 3, 3), groups=2),
        ConvSpec(1, 2, 8, 9, 2, dilation=2, layout="NHWC"),
        ConvSpec(2, 2, 6, 6, 3, stride=3, layout="CHWN"),
    ],
)
def test_conv2d_is_the_definition(spec, rng):
    x, w = rng.standard_normal(spec.input_shape), rng.standard_normal(spec.weight_shape)
    np.testing.assert_allclose(
        reference.conv2d(spec, x, w), by_definition(spec, x, w), rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("m", [2, 4, 6])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC", "CHWN"])
def test_winograd_is_the_direct_convolution(m, layout, rng):
    spec = ConvSpec(2, 5, 9, 13, 6, padding=(2, 0, 1, 2), layout=layout)
    x, w = rng.standard_normal(spec.input_shape), rng.standard_normal(spec.weight_shape)
    got = reference.winograd_conv2d(spec, x, w, m)
    assert reference.relative_error(got, reference.conv2d(spec, x, w)) < 1e-13


@pytest.mark.parametrize("m", [2, 4, 6])
def test_weight_transform_is_the_definition(m, rng):
    w = rng.standard_normal((5, 4, 3, 3)).astype("float32")
    _, g, _ = cook_toom(m, 3).arrays()
    want = np.einsum("ar,bs,kcrs->cabk", g, g, w.astype("float64")).reshape(4, -1, 5)
    for given in (w, np.asfortranarray(w)):
        np.testing.assert_allclose(reference.weight_transform(given, m), want, atol=1e-13)


def test_epilogue_order(rng):
    spec = ConvSpec(1, 2, 3, 3, 4, layout="NHWC")
    y, b = rng.standard_normal(spec.output_shape), rng.standard_normal(4)
    r = rng.standard_normal(spec.output_shape)
    got = reference.apply_epilogue(spec, Epilogue(True, True, True), y, b, r)
    np.testing.assert_array_equal(got, np.maximum(y + b + r, 0))


def test_error_of_nan_is_infinite():
    assert reference.relative_error(np.array([np.nan, 1.0]), np.ones(2)) == float("inf")
    assert reference.relative_error(np.array([1.1, 1.0]), np.ones(2)) == pytest.approx(
        0.1 / np.sqrt(2)
    )
