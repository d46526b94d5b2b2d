"""The depthwise kernel without a GPU: schedules run on the CPU, their code through ptxas."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from convs import FULL
from cpu_kernels import packed_on_the_device
from cuda_kernels import SM90, check, check_bounds, compiled

from tvm_winograd.choose.select import choose
from tvm_winograd.codegen.cubin import resources
from tvm_winograd.gpu import GPUS, PORTABLE, gpu_for, host_cpu
from tvm_winograd.schedules.base.kernel import config_dict
from tvm_winograd.schedules.depthwise.kernel import KERNEL, Depthwise, default
from tvm_winograd.shapes import ConvSpec, Epilogue

WIDE = ConvSpec(n=1, c=32, h=112, w=112, k=32, groups=32)  # MobileNetV2's first
NARROW = ConvSpec(n=32, c=960, h=7, w=7, k=960, groups=960)  # and its last
# No block and no tile is whole; odd maps, rows of no whole vector
RAGGED = ConvSpec(n=3, c=10, h=11, w=13, k=10, groups=10)
SHAPES = [
    (RAGGED, FULL),
    (dataclasses.replace(RAGGED, stride=2, padding=(0, 1, 1, 2)), Epilogue(bias=True)),
    (dataclasses.replace(RAGGED, r=5, s=3, dilation=2, padding=(4, 2, 4, 2)), Epilogue(relu6=True)),
    (ConvSpec(n=1, c=6, h=9, w=16, k=6, r=7, s=7, padding=3, groups=6), Epilogue()),
    (ConvSpec(n=1, c=4, h=33, w=34, k=4, r=31, s=31, padding=15, groups=4), FULL),
    (ConvSpec(n=2, c=3, h=9, w=8, k=12, groups=3), FULL),  # 4 filters a channel
    (ConvSpec(n=2, c=12, h=5, w=6, k=20, groups=4, stride=2), FULL),  # 3 channels, 5 filters
    (ConvSpec(n=2, c=64, h=4, w=4, k=6, groups=2, r=1, s=1, padding=0), FULL),
    (ConvSpec(n=1, c=4, h=31, w=30, k=8, r=29, s=29, padding=14, groups=4), FULL),  # 2 filters
    (ConvSpec(n=5, c=16, h=1, w=1, k=16, r=1, s=1, padding=0, groups=16), FULL),
    (ConvSpec(n=2, c=7, h=1, w=29, k=7, r=1, s=3, padding=(0, 1, 0, 1), groups=7), FULL),
]
DTYPES = ("float32", "float16", "bfloat16", "int8")
LAYOUTS = ("NCHW", "NHWC", "CHWN")


@pytest.mark.parametrize("shape", range(len(SHAPES)))
def test_default_is_the_convolution_in_every_layout_and_dtype(shape: int) -> None:
    spec, epilogue = SHAPES[shape]
    for i, layout in enumerate(LAYOUTS):
        dtypes = DTYPES if shape == i else DTYPES[:1]
        for dtype in dtypes:
            changed = dataclasses.replace(spec, layout=layout, dtype=dtype)
            assert KERNEL.supports(changed, epilogue, SM90) is None
            check(KERNEL, changed, epilogue, default(changed, SM90))


@pytest.mark.parametrize("stride", [1, 2])
def test_every_config_is_the_convolution(stride: int) -> None:
    spec = ConvSpec(n=3, c=8, h=14, w=16, k=8, groups=8, stride=stride)
    for config in KERNEL.configs(spec, SM90):
        check(KERNEL, spec, FULL, config)
    ragged = dataclasses.replace(RAGGED, stride=stride)
    for config in (Depthwise(7, channels=5), Depthwise(2, channels=2), Depthwise(4, patch=False)):
        check(KERNEL, ragged, FULL, config)


@pytest.mark.parametrize("spec", [SHAPES[1][0], SHAPES[6][0]], ids=ConvSpec.key)
def test_no_access_outside_the_arrays(spec: ConvSpec) -> None:
    check_bounds(spec, "direct")


@pytest.mark.parametrize("arch", ["sm_75", "sm_90"])
def test_defaults_keep_everything_in_registers(arch: str) -> None:
    gpu = gpu_for(arch)
    for spec in (WIDE, dataclasses.replace(NARROW, stride=2)):
        config = default(spec, gpu)
        done = compiled(KERNEL, spec, config, arch)
        (kernel,) = resources(done.binary, done.log)
        assert kernel.max_threads == config.threads
        assert (kernel.local_bytes, kernel.spill_stores, kernel.spill_loads) == (0, 0, 0)
        assert "__shared__" not in done.source and "__syncthreads" not in done.source


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_three_filters_of_16_bits_compile(dtype: str) -> None:
    spec = ConvSpec(n=2, c=7, h=7, w=9, k=21, groups=7, dtype=dtype, layout="NHWC")
    config = default(spec, SM90)
    assert config.tk == 3
    assert compiled(KERNEL, spec, config, "sm_90").kind == "cubin"


def test_maps_in_shared_memory_take_what_the_config_says() -> None:
    config = Depthwise(7, channels=32)
    done = compiled(KERNEL, NARROW, config, "sm_90")
    (kernel,) = resources(done.binary, done.log)
    assert config.shared_for(NARROW) == 32 * 7 * 7 * 4
    assert kernel.max_threads == 32 * 7 and kernel.local_bytes == 0
    assert done.source.count("__syncthreads") == 1


def test_weight_transform_equals_pack_weights() -> None:
    for spec in (RAGGED, SHAPES[6][0], dataclasses.replace(RAGGED, dtype="float16")):
        got, want = packed_on_the_device(KERNEL, spec, default(spec, SM90))
        np.testing.assert_array_equal(got, want)


def test_selection_takes_it_for_thin_groups_only() -> None:
    for spec in (WIDE, NARROW, dataclasses.replace(NARROW, stride=2), SHAPES[6][0]):
        choice = choose(spec, FULL, SM90)
        assert (choice.kernel.name, choice.source) == ("depthwise-cuda", "default")
    resnext = ConvSpec(n=32, c=128, h=56, w=56, k=128, groups=32)
    assert choose(resnext, FULL, SM90).kernel.name == "depthwise-cuda"
    thick = ConvSpec(n=1, c=128, h=14, w=14, k=128, groups=2)
    assert choose(thick, FULL, SM90).algorithm == "gemm"
    assert choose(dataclasses.replace(thick, groups=1), FULL, SM90).algorithm != "direct"


def test_supports_says_why_not() -> None:
    assert "llvm" in (KERNEL.supports(WIDE, FULL, host_cpu()) or "")
    for change, reason in (
        ({"groups": 1}, "groups"),
        ({"c": 3000, "k": 10}, "2700 products"),
        ({"n": 4000, "h": 300, "w": 300}, "32-bit"),
    ):
        spec = dataclasses.replace(RAGGED, **change)
        assert reason in (KERNEL.supports(spec, FULL, SM90) or "")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"th": 0}, "th=0"),
        ({"th": 1}, "two outputs"),
        ({"threads": 100}, "whole warps"),
        ({"tk": 2}, "k_tile=2"),
        ({"th": 32}, "registers hold"),
        ({"th": 400, "tw": 4, "patch": False}, "straight line"),
        ({"channels": -1}, "positive"),
        ({"channels": 3}, "divide"),
        ({"channels": 8, "th": 4}, "threads a block"),
        ({"channels": 16}, "shared memory"),
    ],
)
def test_illegal_says_why(change: dict, reason: str) -> None:
    spec = dataclasses.replace(WIDE, h=28, w=28)
    assert reason in (KERNEL.illegal(dataclasses.replace(Depthwise(), **change), spec, SM90) or "")
    nhwc = dataclasses.replace(spec, layout="NHWC")
    assert "NCHW" in (KERNEL.illegal(Depthwise(channels=8), nhwc, SM90) or "")


def test_every_config_is_legal_and_survives_a_log() -> None:
    for spec in (WIDE, NARROW, *(spec for spec, _ in SHAPES)):
        for gpu in (*GPUS.values(), PORTABLE):
            configs = KERNEL.configs(spec, gpu)
            assert configs[0] == default(spec, gpu) and len(configs) == len(set(configs))
            for config in configs:
                assert KERNEL.illegal(config, spec, gpu) is None
                assert KERNEL.make_config(config_dict(config)) == config
