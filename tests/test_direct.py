"""Direct convolution: every kind of convolution, layout and dtype, every config.

The shapes are small and ragged on purpose: no size is a multiple of a vector, a register tile or
a group of cores unless the name says so.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from convs import FULL
from cpu_kernels import check, error_of, hardware, packed_on_the_device

from tvm_winograd.errors import UnsupportedError
from tvm_winograd.gpu import gpu_for, host_cpu, make_target
from tvm_winograd.schedules.on_cpu.direct import KERNEL, DirectCpuConfig
from tvm_winograd.shapes import DTYPES, LAYOUTS, ConvSpec, Epilogue
from tvm_winograd.te import direct

SPECS = {
    "3x3": ConvSpec(n=2, c=5, h=9, w=13, k=19, padding=(0, 2, 1, 1)),
    "stem 7x7 stride 2": ConvSpec(n=1, c=3, h=23, w=21, k=20, r=7, s=7, stride=2, padding=3),
    "5x3 stride 2": ConvSpec(n=2, c=3, h=9, w=11, k=20, r=5, s=3, stride=2, padding=(2, 1, 2, 1)),
    "1x1": ConvSpec(n=3, c=17, h=7, w=7, k=33, r=1, s=1, padding=0),
    "1x1 whole tiles": ConvSpec(n=1, c=8, h=14, w=14, k=32, r=1, s=1, padding=0),
    "1x1 padded stride 2": ConvSpec(n=3, c=7, h=7, w=7, k=9, r=1, s=1, padding=1, stride=2),
    "3x1 on one column": ConvSpec(n=2, c=1, h=4, w=20, k=1, r=3, s=1, padding=0),
    "3x1 padding only": ConvSpec(n=2, c=2, h=1, w=1, k=1, r=3, s=1, stride=2, padding=3),
    "dilation": ConvSpec(n=2, c=4, h=8, w=8, k=4, dilation=3, padding=3),
    "2 groups of 12": ConvSpec(n=2, c=8, h=10, w=9, k=24, groups=2),
    "3 groups of 5": ConvSpec(n=1, c=9, h=6, w=6, k=15, groups=3),
    "depthwise stride 2": ConvSpec(n=2, c=11, h=10, w=9, k=11, groups=11, stride=2),
    "depthwise wide": ConvSpec(n=1, c=3, h=5, w=37, k=6, groups=3),
    "long sums in chunks": ConvSpec(n=1, c=330, h=5, w=6, k=18),
    "long 1x1 sums in chunks": ConvSpec(n=1, c=1040, h=3, w=3, k=16, r=1, s=1, padding=0),
    "one pixel": ConvSpec(n=5, c=16, h=1, w=1, k=10, r=1, s=1, padding=0),
}
EPILOGUES = [Epilogue(), FULL, Epilogue(bias=True, relu6=True), Epilogue(residual=True)]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", SPECS)
def test_every_kind_of_convolution_in_every_layout(name: str, layout: str) -> None:
    spec = change(SPECS[name], layout=layout)
    epilogue = EPILOGUES[(len(name) + LAYOUTS.index(layout)) % 4]
    check(KERNEL, spec, epilogue, KERNEL.configs(spec, host_cpu())[0], host_cpu())


@pytest.mark.parametrize("name", ["3x3", "1x1", "2 groups of 12", "long sums in chunks"])
def test_every_config(name: str) -> None:
    for config in KERNEL.configs(SPECS[name], host_cpu()):
        check(KERNEL, SPECS[name], FULL, config, host_cpu())


@pytest.mark.parametrize("cpu", ["host", "baseline"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_on_every_cpu(dtype: str, cpu: str) -> None:
    for name in ("3x3", "1x1 whole tiles", "depthwise stride 2"):
        spec = change(SPECS[name], dtype=dtype)
        for epilogue in (Epilogue(), FULL):
            check(KERNEL, spec, epilogue, KERNEL.configs(spec, hardware(cpu))[0], hardware(cpu))


@pytest.mark.parametrize("cores", [1, 3, 64])
def test_other_numbers_of_cores(cores: int) -> None:
    cpu = type(host_cpu())(host_cpu().cpu, host_cpu().vector_bits, cores)
    for name in ("3x3", "1x1"):
        check(KERNEL, SPECS[name], FULL, KERNEL.configs(SPECS[name], cpu)[0], cpu)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
@pytest.mark.parametrize("name", ["3x3", "1x1", "2 groups of 12", "depthwise stride 2"])
def test_weight_transform_equals_pack_weights(name: str, dtype: str) -> None:
    spec = change(SPECS[name], dtype=dtype)
    got, want = packed_on_the_device(KERNEL, spec, KERNEL.configs(spec, host_cpu())[0])
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_trivial_tiling_is_a_plain_nest_with_plain_weights(dtype: str, layout: str) -> None:
    """What the CUDA fallback is made of, here unscheduled on the CPU."""
    spec = change(SPECS["5x3 stride 2"], dtype=dtype, layout=layout)
    plain = type(KERNEL)(**{**vars(KERNEL), **PLAIN})
    check(plain, spec, FULL, direct.Tiling(), host_cpu())
    got, want = packed_on_the_device(plain, spec, direct.Tiling())
    assert want.shape == spec.weight_shape and str(want.dtype) == dtype
    np.testing.assert_array_equal(got.astype("float32"), want.astype("float32"))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", SPECS)
def test_dlight_binds_the_trivial_tiling(name: str, layout: str) -> None:
    from tvm.s_tir import dlight

    rules = [dlight.gpu.GeneralReduction(), dlight.gpu.Fallback()]
    func = direct.prim_func(change(SPECS[name], layout=layout), FULL, direct.Tiling())
    with make_target(gpu_for("sm_80")) as target:
        found = [rule.apply(func, target, False) for rule in rules]
    for sch in found:
        if sch is not None:
            all_bound(sch)
    assert found[-1] is not None


def all_bound(sch: Any) -> None:
    for block in sch.get_child_blocks(sch.get_sblock("root")):
        bound = [sch.get(loop).thread_binding for loop in sch.get_loops(block)]
        assert {b.thread_tag for b in bound if b is not None} == {"blockIdx.x", "threadIdx.x"}


def test_chunks_keep_long_sums_accurate() -> None:
    """One running sum of 4,608 products is 1.1e-6 from float64 here."""
    spec = ConvSpec(n=1, c=512, h=7, w=7, k=32)
    config = KERNEL.configs(spec, host_cpu())[0]
    assert config.c_chunk == 256
    assert error_of(KERNEL, spec, Epilogue(), config, host_cpu()) < 5e-7


def test_refusals_say_why() -> None:
    spec, cpu = SPECS["3x3"], host_cpu()
    assert "llvm" in (KERNEL.supports(spec, Epilogue(), gpu_for("sm_90")) or "")
    flat = DirectCpuConfig(8, 1, 1, 8, True, False)
    assert "flat" in (KERNEL.illegal(flat, spec, cpu) or "")
    huge = DirectCpuConfig(8, 4, 8, 8, False, False)
    assert "spill" in (KERNEL.illegal(huge, spec, cpu) or "")
    split = DirectCpuConfig(8, 1, 1, 8, False, False)
    assert "divide" in (KERNEL.illegal(split, SPECS["3 groups of 5"], cpu) or "")
    chunks = DirectCpuConfig(8, 1, 1, 8, False, False, c_chunk=3)
    assert "c_chunk" in (KERNEL.illegal(chunks, spec, cpu) or "")
    with pytest.raises(UnsupportedError, match="32-bit"):
        direct.prim_func(ConvSpec(n=2**20, c=4, h=64, w=64, k=4), Epilogue(), direct.Tiling())


PLAIN = {
    "config": direct.Tiling,
    "prim_func": direct.prim_func,
    "schedule": lambda sch, config, cpu: None,
    "pack_weights": direct.pack_weights,
    "weight_func": direct.weight_func,
}


def change(spec: ConvSpec, **fields: str) -> ConvSpec:
    return ConvSpec(**{**vars(spec), **fields})
