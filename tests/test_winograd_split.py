"""The fused CUDA kernel with C in parts, without a GPU: run on the CPU, compiled for each GPU."""

from __future__ import annotations

import dataclasses

import pytest
from convs import FULL
from cuda_kernels import SM90, check, check_bounds, compiled, scheduled
from test_winograd_fused import launch_shared_bytes

from tvm_winograd.choose.select import choose
from tvm_winograd.codegen.cubin import resources
from tvm_winograd.gpu import GPUS, gpu_for
from tvm_winograd.schedules.base.kernel import config_dict
from tvm_winograd.schedules.winograd_fused import kernel as fused
from tvm_winograd.schedules.winograd_fused.kernel import KERNEL, Fused
from tvm_winograd.shapes import ConvSpec, Epilogue
from tvm_winograd.te import split, winograd

SMALL = ConvSpec(n=1, c=256, h=14, w=14, k=256)
# five steps of channels, the last ragged; ragged blocks of tiles and filters; a default that splits
RAGGED = ConvSpec(n=2, c=35, h=9, w=13, k=70)
TWO = Fused(bc=4, unroll=4, split_c=2)
NARROW = Fused(bp=16, lanes="eekpk", split_c=3)
CONFIGS = [
    TWO,
    NARROW,
    Fused(split_c=5),
    Fused(bk=32, tk=8, rounds=2, weights="registers", split_c=2),
    Fused(bk=32, bp=16, tk=8, lanes="eekkp", rounds=2, split_c=2),
    Fused(bk=16, bp=16, tk=4, tp=4, rounds=1, split_c=2),
]


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_sum_of_the_parts_is_the_convolution(config: Fused) -> None:
    check(KERNEL, RAGGED, FULL, config)


@pytest.mark.parametrize(
    ("spec", "epilogue", "config"),
    [
        (ConvSpec(n=1, c=9, h=1, w=1, k=1), FULL, Fused(split_c=2)),
        (ConvSpec(n=1, c=24, h=5, w=6, k=65, padding=(0, 2, 3, 0)), Epilogue(bias=True), NARROW),
        (ConvSpec(n=3, c=16, h=4, w=4, k=64, padding=0), Epilogue(residual=True), TWO),
        (ConvSpec(n=33, c=8, h=2, w=2, k=3, layout="CHWN"), Epilogue(relu=True), TWO),
        (ConvSpec(n=2, c=20, h=9, w=13, k=17, padding=(0, 2, 1, 1), layout="NHWC"), FULL, NARROW),
        (ConvSpec(n=1, c=20, h=8, w=8, k=17, layout="NHWC", dtype="float16"), FULL, NARROW),
        (ConvSpec(n=1, c=20, h=8, w=8, k=17, dtype="float16"), Epilogue(), NARROW),
    ],
    ids=lambda v: v.key() if hasattr(v, "key") else "",
)
def test_any_shape(spec: ConvSpec, epilogue: Epilogue, config: Fused) -> None:
    check(KERNEL, spec, epilogue, config)


def test_inside_its_arrays() -> None:
    """Between unreadable pages, as in test_bounds.py, with the config that is chosen there."""
    assert choose(RAGGED, FULL, SM90, algorithm="winograd-f2").config.split_c > 1
    check_bounds(RAGGED, "winograd-f2")


@pytest.mark.parametrize(
    ("n", "wanted"),
    [
        (1, ["32x16/1", "64x32/8", "64x32/16", "32x16/8"]),
        (8, ["64x32/1", "64x32/1", "64x32/5", "64x32/4"]),
        (32, ["64x32/1"] * 4),
        (128, ["64x32/1"] * 4),
    ],
)
def test_default_tile_and_parts(n: int, wanted: list[str]) -> None:
    """ResNet's layers on an H200: the choices that were measured (schedules/..._config.py)."""
    layers = ((64, 56), (128, 28), (256, 14), (512, 7))
    chosen = [fused.default(ConvSpec(n, c, size, size, c), SM90) for c, size in layers]
    assert [f"{c.bk}x{c.bp}/{c.split_c}" for c in chosen] == wanted
    assert all(c.weights == "async" for c in chosen if c.split_c > 1)


def test_no_parts_without_channels_for_them() -> None:
    for c in (1, 3, 8):
        assert fused.default(ConvSpec(n=1, c=c, h=7, w=7, k=512), SM90).split_c == 1


def test_configs_have_parts_each_legal() -> None:
    configs = KERNEL.configs(SMALL, SM90)
    assert len({c.split_c for c in configs}) > 2
    assert all(KERNEL.illegal(c, SMALL, SM90) is None for c in configs)


@pytest.mark.parametrize("arch", GPUS)
def test_default_of_batch_1_compiles_without_spills(arch: str) -> None:
    gpu = gpu_for(arch)
    config = fused.default(SMALL, gpu)
    assert config.split_c > 1
    done = compiled(KERNEL, SMALL, config, arch)
    assert "atomic" not in done.source
    first, second = sorted(resources(done.binary, done.log), key=lambda kernel: -kernel.registers)
    for kernel in (first, second):
        assert (kernel.local_bytes, kernel.spill_stores, kernel.spill_loads) == (0, 0, 0)
    assert first.max_threads == config.threads
    z = winograd.sizes(SMALL, config.tiling)
    tiles = z.kb * z.bk * z.pb * z.bp
    assert second.max_threads is not None and second.max_threads * gpu.sms <= tiles


def test_workspace_is_read_and_written_16_bytes_at_a_time() -> None:
    """Also where the output is narrower: an odd width, 16-bit storage, NHWC."""
    spec = ConvSpec(n=1, c=16, h=7, w=7, k=64, layout="NHWC", dtype="float16")
    done = compiled(KERNEL, spec, Fused(split_c=2), "sm_90")
    accesses = [part for part in done.source.split(";") if "(wino_Y_ptr + " in part]
    assert len(accesses) == 8 + 2  # a thread's tiles in kernel 1; the parts of one in kernel 2
    assert all("*(float4*)(wino_Y_ptr + " in part for part in accesses)


@pytest.mark.parametrize("config", [TWO, NARROW], ids=["two", "narrow"])
def test_shared_memory_covers_the_launch(config: Fused) -> None:
    assert 0 < launch_shared_bytes(scheduled(KERNEL, RAGGED, FULL, config)) <= config.shared_bytes


def test_nhwc_compiles_where_blocks_are_no_power_of_two() -> None:
    """Three blocks of filters, three of tiles: fused, TVM lost track of a thread's tiles."""
    spec = ConvSpec(n=2, c=16, h=9, w=13, k=192, layout="NHWC")
    assert "wino_Y" in compiled(KERNEL, spec, Fused(split_c=2), "sm_90").source


def test_one_part_is_the_plain_kernel() -> None:
    whole, parts = (str(KERNEL.prim_func(SMALL, FULL, Fused(split_c=s))) for s in (1, 2))
    assert "wino_S" not in whole and all(name in parts for name in split.BLOCKS)


@pytest.mark.parametrize(
    ("config", "spec", "reason"),
    [
        (Fused(split_c=0), SMALL, "positive integer"),
        (Fused(split_c=14), dataclasses.replace(SMALL, c=104), "leave a part empty"),
        (Fused(split_c=15), SMALL, "32 steps of 8 channels"),
        (Fused(split_c=2), dataclasses.replace(SMALL, c=8), "1 steps"),
        (Fused(split_c=Fused().max_parts + 1), dataclasses.replace(SMALL, c=8192), "sums at most"),
        (Fused(split_c=16), ConvSpec(n=40, c=128, h=256, w=256, k=64), "32-bit"),
    ],
)
def test_illegal_says_why(config: Fused, spec: ConvSpec, reason: str) -> None:
    assert reason in (KERNEL.illegal(config, spec, SM90) or "")


def test_config_survives_a_log() -> None:
    assert KERNEL.make_config(config_dict(NARROW)) == NARROW
    without = {k: v for k, v in config_dict(Fused()).items() if k != "split_c"}
    assert KERNEL.make_config(without) == Fused()  # a log from before there were parts
