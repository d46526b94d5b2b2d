"""The tensor expressions alone, unscheduled, on the CPU."""

from __future__ import annotations

import numpy as np
import pytest
from convs import FULL, expected, random_arrays
from cuda_kernels import run

from tvm_winograd.errors import UnsupportedError
from tvm_winograd.shapes import ConvSpec, Epilogue
from tvm_winograd.te import winograd
from tvm_winograd.te.winograd import Tiling
from tvm_winograd.truth import reference
from tvm_winograd.truth.tolerances import tolerance

# ragged in everything: tiles of the map, K, C and P of the blocks below
RAGGED = dict(n=2, c=5, h=9, w=13, k=6, padding=(0, 2, 1, 1))


def tilings(m: int) -> list[Tiling]:
    return [
        Tiling(m),
        Tiling(m, k_tile=(2, 2, 4), p_tile=(2, 4), c_tile=4),
        Tiling(m, k_tile=(4,), p_tile=(2, 4), c_tile=2, channel_outer=False),
    ]


def check(func: object, spec: ConvSpec, epilogue: Epilogue, tiling: Tiling) -> None:
    arrays = random_arrays(spec, epilogue)
    x, w, *extra = arrays
    u = winograd.pack_weights(w, spec, tiling)
    got = run(func, [x, u, *extra], spec.output_shape, spec.out_dtype)
    error = reference.relative_error(got, expected(spec, epilogue, arrays))
    assert error < tolerance(spec, f"winograd-f{tiling.m}")


@pytest.mark.parametrize("layout", ["NCHW", "NHWC", "CHWN"])
@pytest.mark.parametrize("m", [2, 4])
def test_matches_the_reference(m: int, layout: str) -> None:
    spec = ConvSpec(**RAGGED, layout=layout)
    for tiling in tilings(m):
        check(winograd.prim_func(spec, FULL, tiling), spec, FULL, tiling)
        check(winograd.tiled_prim_func(spec, FULL, tiling), spec, FULL, tiling)


@pytest.mark.parametrize("make", [winograd.prim_func, winograd.tiled_prim_func])
def test_one_pixel_one_channel_one_filter(make: object) -> None:
    spec = ConvSpec(n=1, c=1, h=1, w=1, k=1)
    for m in (2, 4):
        for tiling in tilings(m):
            check(make(spec, Epilogue(), tiling), spec, Epilogue(), tiling)


@pytest.mark.parametrize("dtype", ["float16"])
def test_narrow_storage_wide_arithmetic(dtype: str) -> None:
    spec = ConvSpec(**RAGGED, dtype=dtype)
    check(winograd.prim_func(spec, FULL, Tiling(2)), spec, FULL, Tiling(2))


@pytest.mark.parametrize("m", [2, 4])
def test_weight_transform_equals_pack_weights(m: int) -> None:
    spec = ConvSpec(**RAGGED)
    _, weights = random_arrays(spec, Epilogue())
    for tiling in tilings(m):
        func = winograd.weight_func(spec, tiling)
        got = run(func, [weights], winograd.weight_shape(spec, tiling), "float32")
        np.testing.assert_allclose(got, winograd.pack_weights(weights, spec, tiling), 1e-5, 1e-6)


def test_tile_index_and_position_are_inverse() -> None:
    for layout in ("NCHW", "NHWC", "CHWN"):
        spec = ConvSpec(n=3, c=1, h=5, w=7, k=1, layout=layout)
        z = winograd.sizes(spec, Tiling(2))
        places = [winograd.tile_position(spec, z, p) for p in range(z.p)]
        assert len(set(places)) == z.p
        assert [winograd.tile_index(spec, z, *place) for place in places] == list(range(z.p))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"r": 1, "s": 1, "padding": 0}, "3x3 filter, got 1x1"),
        ({"stride": 2}, "stride 1, got 2"),
        ({"groups": 2}, "groups 1, got 2"),
        ({"dilation": 2}, "dilation 1, got 2"),
        ({"dtype": "int8"}, "no integers, got int8"),
        ({"n": 2**20, "h": 64, "w": 64}, "32-bit"),
    ],
)
def test_says_why_it_does_not_apply(change: dict, reason: str) -> None:
    spec = ConvSpec(**{"n": 1, "c": 4, "h": 8, "w": 8, "k": 4} | change)
    assert reason in (winograd.applies(spec) or "")
    with pytest.raises(UnsupportedError):
        winograd.prim_func(spec, Epilogue(), Tiling())
