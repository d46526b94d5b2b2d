"""What is left to dlight on CUDA, without a GPU: every function can be lowered, and is right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from convs import FULL, expected, random_arrays
from cuda_kernels import SM90, run
from serial import serialise
from tvm import te

from tvm_winograd.codegen import build
from tvm_winograd.gpu import make_target
from tvm_winograd.passes.apply_schedules import dlight_schedule
from tvm_winograd.passes.unit_sums import drop_unit_sums
from tvm_winograd.schedules.direct.kernel import KERNEL, Dlight
from tvm_winograd.shapes import ConvSpec, Epilogue
from tvm_winograd.truth import reference
from tvm_winograd.truth.tolerances import tolerance

GROUPED = ConvSpec(n=4, c=12, h=12, w=9, k=4, r=5, s=5, padding=0, groups=2)
POINTWISE = ConvSpec(n=2, c=6, h=9, w=7, k=12, r=1, s=1, padding=0, groups=6)
SPECS = [
    GROUPED,
    ConvSpec(n=2, c=7, h=9, w=4, k=14, padding=0, groups=7),
    ConvSpec(n=1, c=9, h=8, w=7, k=6, padding=0, groups=3, layout="NHWC"),
    POINTWISE,
    ConvSpec(1, 6, 5, 7, 12, 1, 1, 2, (3, 0, 0, 1), groups=6, layout="CHWN"),
    ConvSpec(n=1, c=1, h=1, w=1, k=5, r=1, s=1, padding=0),
    ConvSpec(n=2, c=4, h=5, w=4, k=4, r=1, s=1, padding=0, groups=4, dtype="int8"),
]


def by_dlight(func: Any) -> tvm.IRModule:
    with make_target(SM90):
        _, done = dlight_schedule(func)
    return tvm.IRModule({"main": done.with_attr("global_symbol", "main")})


@pytest.mark.parametrize("spec", SPECS, ids=ConvSpec.key)
def test_fallback_is_the_convolution(spec: ConvSpec) -> None:
    for epilogue in (Epilogue(), FULL, Epilogue(bias=True, relu6=True)):
        mod = by_dlight(KERNEL.prim_func(spec, epilogue, Dlight()))
        arrays = random_arrays(spec, epilogue)
        got = run(serialise(mod), arrays, spec.output_shape, spec.out_dtype)
        error = reference.relative_error(got, expected(spec, epilogue, arrays))
        assert error <= tolerance(spec, "direct")


@pytest.mark.parametrize("spec", [GROUPED, POINTWISE], ids=ConvSpec.key)
def test_fallback_compiles(spec: ConvSpec) -> None:
    build.build(by_dlight(KERNEL.prim_func(spec, FULL, Dlight())), SM90, pipeline="tir")


@pytest.mark.parametrize("terms", [1, 3])
def test_what_follows_a_sum_is_done_once(terms: int) -> None:
    x = te.placeholder((5, 7, terms), name="x")
    at = te.reduce_axis((0, terms))
    total = te.compute((5, 7), lambda i, j: te.sum(x[i, j, at], at))
    out = te.compute((5, 7), lambda i, j: total[i, j] * 2.0 + 3.0)
    values = np.random.default_rng(0).standard_normal((5, 7, terms)).astype("float32")
    mod = by_dlight(te.create_prim_func([x, out]))
    got = run(serialise(mod), [values], (5, 7), "float32")
    np.testing.assert_allclose(got, values.sum(2) * 2 + 3, rtol=1e-5, atol=1e-5)


def test_only_sums_of_one_term_are_dropped() -> None:
    for spec, kept in ((GROUPED, True), (POINTWISE, False)):
        func = KERNEL.prim_func(spec, FULL, Dlight())
        assert ("T.init" in func.script()) and ("T.init" in drop_unit_sums(func).script()) == kept
