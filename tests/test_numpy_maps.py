"""Resizing and transposed convolution of the numpy interpreter, against torch."""

from __future__ import annotations

import numpy as np
import pytest
from test_evaluate import data, run, t64
from torch.nn import functional
from tvm import relax

from tvm_winograd.errors import UnsupportedError

X = data(2, 6, 9, 7)


@pytest.mark.parametrize("size", [(18, 14), (5, 11), (9, 1), (27, 35)])
@pytest.mark.parametrize(
    ("mode", "corners", "options"),
    [
        ("bilinear", False, {"coordinate_transformation_mode": "half_pixel"}),
        ("bilinear", True, {"coordinate_transformation_mode": "align_corners"}),
        ("nearest", None,
         {"coordinate_transformation_mode": "asymmetric", "rounding_method": "floor"}),
        ("nearest-exact", None, {"coordinate_transformation_mode": "half_pixel"}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_resize(size, mode, corners, options, layout) -> None:
    method = "linear" if mode == "bilinear" else "nearest_neighbor"
    want = functional.interpolate(t64(X), size, mode=mode, align_corners=corners).numpy()
    order = ["NCHW".index(axis) for axis in layout]
    got = run(
        lambda x: relax.op.image.resize2d(x, size, layout=layout, method=method, **options),
        np.ascontiguousarray(X.transpose(order)),
    )
    np.testing.assert_allclose(got, want.transpose(order), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize(
    "options",
    [
        {"strides": (2, 2)},
        {"strides": (2, 3), "padding": (1, 0, 1, 0), "output_padding": (1, 2)},
        {"strides": (1, 1), "padding": (2, 1, 2, 1), "dilation": (2, 1), "groups": 2},
    ],
)
def test_transposed_convolution(options, layout) -> None:
    groups = options.get("groups", 1)
    w = data(6, 4 // groups, 3, 2, seed=1)
    named = {"strides": "stride", "padding": "padding"}
    theirs = {named.get(k, k): v[:2] if k == "padding" else v for k, v in options.items()}
    want = functional.conv_transpose2d(t64(X), t64(w), **theirs).numpy()
    order = ["NCHW".index(axis) for axis in layout]
    got = run(
        lambda x, w: relax.op.nn.conv2d_transpose(x, w, data_layout=layout, **options),
        np.ascontiguousarray(X.transpose(order)),
        w,
    )
    np.testing.assert_allclose(got, want.transpose(order), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"method": "cubic"}, "cubic: linear and nearest_neighbor"),
        ({"coordinate_transformation_mode": "tf_half_pixel_for_nn"}, "half_pixel, pytorch"),
    ],
)
def test_other_resizes_are_refused(options, match) -> None:
    with pytest.raises(UnsupportedError, match=match):
        run(lambda x: relax.op.image.resize2d(x, (4, 4), layout="NCHW", **options), X)
