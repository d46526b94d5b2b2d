"""F(4x4) in three kernels, without a GPU: its schedule run on the CPU, its code through ptxas."""

from __future__ import annotations

import dataclasses

import pytest
from convs import FULL
from cuda_kernels import SM90, check, check_bounds, compiled

from tvm_winograd.choose.options import Limits
from tvm_winograd.choose.select import choose
from tvm_winograd.codegen.cubin import resources
from tvm_winograd.gpu import GPUS, Cpu, gpu_for
from tvm_winograd.schedules.base.kernel import config_dict
from tvm_winograd.schedules.winograd_staged import kernel as f4
from tvm_winograd.schedules.winograd_staged.kernel import KERNEL, Staged
from tvm_winograd.schedules.winograd_staged.search import LADDER
from tvm_winograd.shapes import ConvSpec, Epilogue

RESNET = ConvSpec(n=32, c=128, h=28, w=28, k=128)
# 96 tiles: two ragged blocks of 64, three of 32; two of filters; three steps of channels
RAGGED = ConvSpec(n=4, c=17, h=15, w=21, k=70)
DEFAULTS = {arch: f4.default(RESNET, gpu) for arch, gpu in GPUS.items()}
SMALL = Staged(bk=32, bp=32, tk=4, tp=4, lanes="pppkk", threads=64, patches=1, tiles=2)
CONFIGS = list(
    dict.fromkeys(
        [
            *DEFAULTS.values(),
            *(tile for tile, _ in LADDER),
            Staged(bk=128, tk=16),
            Staged(row=8),
            Staged(chunks=2),
            Staged(buffers=2, threads=128, tiles=2),
            Staged(bc=16, buffers=3, patches=4),
            dataclasses.replace(SMALL, row=4, chunks=3),
            Staged(bp=16, tk=4, lanes="kkkkp", threads=64, patches=1, tiles=1, row=2, chunks=2),
            Staged(bc=4, copies="registers", buffers=1, threads=64, row=64),
        ]
    )
)


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_scheduled_program_is_the_convolution(config: Staged) -> None:
    check(KERNEL, RAGGED, FULL, config)


@pytest.mark.parametrize("make", [lambda s: f4.default(s, SM90), f4.portable], ids=["async", "reg"])
@pytest.mark.parametrize(
    ("spec", "epilogue"),
    [
        (ConvSpec(n=2, c=4, h=9, w=13, k=4), Epilogue()),
        (ConvSpec(n=1, c=1, h=1, w=1, k=1), FULL),
        (ConvSpec(n=1, c=1, h=5, w=6, k=65, padding=(0, 2, 3, 0)), Epilogue(bias=True)),
        (ConvSpec(n=3, c=9, h=6, w=6, k=64, padding=0), Epilogue(residual=True)),
        (ConvSpec(n=33, c=8, h=2, w=2, k=3, layout="CHWN"), Epilogue(relu6=True)),
        (ConvSpec(n=2, c=9, h=9, w=13, k=17, padding=(0, 2, 1, 1), layout="NHWC"), FULL),
        (ConvSpec(n=2, c=9, h=8, w=8, k=17, layout="NHWC", dtype="float16"), FULL),
        (ConvSpec(n=2, c=9, h=8, w=8, k=17, dtype="float16"), FULL),
        (ConvSpec(n=2, c=9, h=7, w=7, k=17, dtype="float16"), FULL),
    ],
    ids=lambda v: v.key(),
)
def test_any_shape(spec: ConvSpec, epilogue: Epilogue, make: object) -> None:
    check(KERNEL, spec, epilogue, make(spec))


def test_inside_its_arrays() -> None:
    check_bounds(ConvSpec(3, 5, 7, 7, 70, padding=(2, 0, 1, 2)), KERNEL.algorithm)


@pytest.mark.parametrize("arch", GPUS)
def test_default_compiles_without_spills(arch: str) -> None:
    config = DEFAULTS[arch]
    done = compiled(KERNEL, RESNET, config, arch)
    assert done.kind == "cubin"
    kernels = resources(done.binary, done.log)
    assert sorted(k.max_threads for k in kernels) == [config.gemm_threads] + 2 * [config.threads]
    for kernel in kernels:
        assert (kernel.local_bytes, kernel.spill_stores, kernel.spill_loads) == (0, 0, 0)
        assert kernel.registers <= 255


def gemm_loop(source: str) -> str:
    """The main loop of the GEMM, the one loop of the three kernels."""
    loop = source[source.index("  for (int") :]
    return loop[: loop.index("\n  }")]


def test_default_source_overlaps_copies_and_arithmetic() -> None:
    loop = gemm_loop(compiled(KERNEL, RESNET, Staged(), "sm_90").source)
    assert loop.count("__syncthreads()") == 2
    assert loop.count("cp_async_legacy_cg_16_4_4(") == 8 * (64 + 64) // 4 // 64
    assert loop.count("commit_group();") == 1
    assert loop.index("cp_async_legacy") < loop.index("wait_group") < loop.index("wino_M_local_ptr")


def test_portable_source_has_no_async_copy() -> None:
    loop = gemm_loop(compiled(KERNEL, RESNET, f4.portable(RESNET), "sm_75").source)
    assert "cp_async" not in loop
    assert loop.count("__syncthreads()") == 2


def test_default_fills_the_gpu() -> None:
    """Full tiles at batch 128, smaller ones at batch 1; no tile that is mostly padding."""
    sizes = {}
    for n in (128, 1):
        for c, h in ((64, 56), (512, 7)):
            config = f4.default(ConvSpec(n=n, c=c, h=h, w=h, k=c), SM90)
            sizes[n, c] = (config.bk, config.bp)
    assert sizes == {
        (128, 64): (64, 64),
        (128, 512): (64, 64),
        (1, 64): (32, 32),
        (1, 512): (64, 16),
    }


def test_default_comes_first_and_every_config_is_legal() -> None:
    for spec in (RESNET, RAGGED):
        for gpu in GPUS.values():
            configs = KERNEL.configs(spec, gpu)
            assert configs[0] == f4.default(spec, gpu)
            assert len(set(configs)) == len(configs) > 3
            assert all(KERNEL.illegal(c, spec, gpu) is None for c in configs)


@pytest.mark.parametrize(
    ("config", "arch", "reason"),
    [
        (Staged(), "sm_75", "cp.async"),
        (Staged(lanes="ppkk"), "sm_90", "5 bits"),
        (Staged(bk=128, tk=32, tp=8, lanes="ppkkp"), "sm_90", "registers"),
        (Staged(buffers=16), "sm_75", "cp.async"),
        (Staged(bc=16, buffers=16), "sm_86", "shared memory"),
        (Staged(tk=6), "sm_90", "multiples of 4"),
        (Staged(bk=36), "sm_90", "does not divide"),
        (Staged(lanes="ppkkk", bk=32), "sm_90", "divide"),
        (Staged(bc=2, patches=1), "sm_90", "uneven"),
        (Staged(buffers=1), "sm_90", "buffers=1"),
        (Staged(copies="tma"), "sm_90", '"async" or "registers"'),
        (Staged(threads=48), "sm_90", "multiple of 32"),
        (Staged(threads=32, patches=1), "sm_90", "patches=1"),
        (Staged(patches=32), "sm_90", "channels"),
        (Staged(tiles=6), "sm_90", "filters"),
        (Staged(row=3), "sm_90", "row=3"),
        (Staged(row=-1), "sm_90", "row=-1"),
        (Staged(chunks=3), "sm_90", "chunks=3"),
        (Staged(bc=0), "sm_90", "positive integer"),
    ],
)
def test_illegal_says_why(config: Staged, arch: str, reason: str) -> None:
    assert reason in (KERNEL.illegal(config, RESNET, gpu_for(arch)) or "")


def test_supports_says_why_not() -> None:
    assert "llvm" in (KERNEL.supports(RESNET, FULL, Cpu("generic", 128, 1)) or "")
    strided = dataclasses.replace(RESNET, stride=2)
    assert "stride" in (KERNEL.supports(strided, FULL, SM90) or "")
    for gpu in GPUS.values():
        assert KERNEL.supports(RESNET, FULL, gpu) is None
    large = ConvSpec(n=1, c=64, h=4000, w=4000, k=64)
    assert "32-bit" in (KERNEL.supports(large, FULL, SM90) or "")


def test_config_survives_a_log() -> None:
    config = Staged(bc=16, row=4, chunks=2)
    assert KERNEL.make_config(config_dict(config)) == config


def test_taken_where_it_is_estimated_to_win() -> None:
    assert choose(RESNET, FULL, SM90).kernel is KERNEL
    exact = choose(RESNET, FULL, SM90, limits=Limits(max_error=1e-6))
    assert exact.algorithm == "winograd-f2"
    choice = choose(RESNET, FULL, SM90, algorithm="winograd-f4")
    assert (choice.kernel, choice.source) == (KERNEL, "default")
