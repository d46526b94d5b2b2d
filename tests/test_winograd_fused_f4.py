"""F(4x4) in one kernel, without a GPU: its schedule run on the CPU, its code through ptxas."""

from __future__ import annotations

import dataclasses

import pytest
from convs import FULL
from cuda_kernels import SM90, check, check_bounds, compiled, scheduled
from test_winograd_fused import launch_shared_bytes

from tvm_winograd.choose.select import choose
from tvm_winograd.codegen.cubin import resources
from tvm_winograd.gpu import GPUS, Cpu, gpu_for
from tvm_winograd.schedules.base.kernel import config_dict
from tvm_winograd.schedules.winograd_fused import search_f4 as f4
from tvm_winograd.schedules.winograd_fused.kernel import F4, Fused, FusedF4
from tvm_winograd.schedules.winograd_staged import kernel as winograd_f4
from tvm_winograd.shapes import ConvSpec, Epilogue

RESNET = ConvSpec(n=128, c=128, h=28, w=28, k=128)
# ragged blocks of tiles and filters, three steps of channels
RAGGED = ConvSpec(n=5, c=17, h=9, w=13, k=70)
WIDE, _, _, THIN, SMALL = f4.TILES
# each tile, and knobs that change the program's order
CONFIGS = [
    *f4.TILES,
    FusedF4(buffers=2),
    FusedF4(rounds=4, stores=2),
    FusedF4(tk=8, tp=4, lanes="ppkkp", rounds=1),
]


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_scheduled_program_is_the_convolution(config: FusedF4) -> None:
    check(F4, RAGGED, FULL, config)


@pytest.mark.parametrize(
    ("spec", "epilogue", "config"),
    [
        (ConvSpec(n=2, c=4, h=9, w=13, k=4), Epilogue(), FusedF4()),
        (ConvSpec(n=1, c=1, h=1, w=1, k=1), FULL, THIN),
        (ConvSpec(n=2, c=8, h=8, w=12, k=40), FULL, FusedF4()),  # rows of 16 bytes
        (ConvSpec(n=1, c=1, h=5, w=6, k=65, padding=(0, 2, 3, 0)), Epilogue(bias=True), SMALL),
        (ConvSpec(n=3, c=9, h=6, w=6, k=64, padding=0), Epilogue(residual=True), WIDE),
        (ConvSpec(n=33, c=8, h=2, w=2, k=3, layout="CHWN"), Epilogue(relu=True), FusedF4()),
        (ConvSpec(n=2, c=9, h=9, w=13, k=17, padding=(0, 2, 1, 1), layout="NHWC"), FULL, SMALL),
        (ConvSpec(n=2, c=9, h=8, w=8, k=17, layout="NHWC", dtype="float16"), FULL, FusedF4()),
        (ConvSpec(n=2, c=9, h=8, w=8, k=17, dtype="float16"), FULL, WIDE),
        (ConvSpec(n=2, c=17, h=9, w=13, k=17), FULL, FusedF4(split_c=3)),
        (ConvSpec(n=2, c=20, h=8, w=8, k=17, layout="NHWC"), FULL, FusedF4(split_c=2)),
        (ConvSpec(n=2, c=20, h=8, w=8, k=17), FULL, dataclasses.replace(SMALL, split_c=2)),
    ],
    ids=lambda v: v.key() if hasattr(v, "key") else "",
)
def test_any_shape(spec: ConvSpec, epilogue: Epilogue, config: FusedF4) -> None:
    check(F4, spec, epilogue, config)


def test_inside_its_arrays() -> None:
    spec = ConvSpec(3, 11, 7, 7, 70, padding=(2, 0, 1, 2))
    check_bounds(spec, F4.algorithm, F4, FusedF4(split_c=2))


@pytest.mark.parametrize("config", [WIDE, FusedF4(rounds=4)], ids=str)
def test_shared_bytes_covers_the_launch(config: FusedF4) -> None:
    spec = dataclasses.replace(RAGGED, layout="NHWC")
    asked = launch_shared_bytes(scheduled(F4, spec, Epilogue(), config))
    assert 0 <= config.shared_bytes - asked <= 4 * config.bc * 4


def test_default_hardly_spills() -> None:
    """On every GPU since sm_80, but for 16 bytes at most; three warps a scheduler leave a thread
    168 registers."""
    for arch in ("sm_80", "sm_86", "sm_90"):
        config = f4.default(RESNET, gpu_for(arch))
        done = compiled(F4, RESNET, config, arch)
        assert done.kind == "cubin"
        (kernel,) = resources(done.binary, done.log)
        assert max(kernel.spill_stores, kernel.spill_loads) <= 16
        assert kernel.registers <= 168 and kernel.max_threads == config.threads == 384


def test_default_holds_patches_and_loads_operands_ahead() -> None:
    """In NCHW float32, as measured on an H200; not held, and one fragment, are tried."""
    first, *others = F4.configs(RESNET, SM90)
    held = dataclasses.replace(WIDE, held=True, fragments=2)
    assert first == held
    assert dataclasses.replace(WIDE, held=True, fragments=1) in others
    assert dataclasses.replace(WIDE, fragments=2) in others
    done = compiled(F4, RESNET, first, "sm_90")
    (kernel,) = resources(done.binary, done.log)
    assert kernel.registers <= 168 and kernel.spill_stores <= 24
    for other in (dict(layout="NHWC"), dict(dtype="float16")):
        assert not f4.default(dataclasses.replace(RESNET, **other), SM90).held


def test_threads_without_a_patch_neither_load_nor_transform() -> None:
    """256 patches a step for 384 threads: everything about them is for the first 8 warps."""
    source = compiled(F4, RESNET, FusedF4(), "sm_90").source
    loop = source[source.index("  for (int") :]
    loop = loop[: loop.index("\n  }")]
    assert "wino_T" not in loop and loop.count("X_ptr[") == 36
    assert loop.count("if (((int)threadIdx.y) < 8)") >= 2 * 36
    assert loop.count("__syncthreads()") == 2
    assert loop.count("cp_async_legacy_cg_16_4_4(") == 8 * 36 * 32 // 4 // 384


def test_rows_of_tiles_are_stored_whole() -> None:
    source = compiled(F4, RESNET, FusedF4(), "sm_90").source
    stores = [line for line in source.splitlines() if "O_ptr + " in line or "O_ptr[" in line]
    assert stores and all("*(float4*)(O_ptr + " in line for line in stores)


def test_no_config_is_tried_that_a_single_step_cannot_have() -> None:
    few = dataclasses.replace(RESNET, c=3)
    assert any(c.buffers > 1 for c in F4.configs(RESNET, SM90))
    assert all(c.buffers == 1 for c in F4.configs(few, SM90))


def test_default_comes_first_and_every_config_is_legal() -> None:
    for spec in (RESNET, RAGGED, dataclasses.replace(RESNET, n=1)):
        for arch in ("sm_80", "sm_86", "sm_90", "sm_120"):
            gpu = gpu_for(arch)
            configs = F4.configs(spec, gpu)
            assert configs[0] == f4.default(spec, gpu)
            assert 3 <= len(set(configs)) == len(configs) <= 20
            assert all(F4.illegal(c, spec, gpu) is None for c in configs)
    assert 6 <= len(F4.configs(RESNET, SM90)) <= 14


def test_small_batches_split_the_channels() -> None:
    assert f4.default(ConvSpec(n=1, c=512, h=7, w=7, k=512), SM90).split_c == 4


@pytest.mark.parametrize(
    ("config", "arch", "reason"),
    [
        (FusedF4(), "sm_75", "cp.async"),
        (FusedF4(weights="registers"), "sm_90", 'has "async"'),
        (FusedF4(), "sm_86", "shared memory"),
        (FusedF4(tk=16, tp=8, points=1, lanes="eepkp"), "sm_90", "may have 170"),
        (FusedF4(bc=16), "sm_90", "registers a thread"),
        (FusedF4(points=5), "sm_90", "1, 2, 3, 4, 6 (eps, nu)"),
        (FusedF4(lanes="epkkp"), "sm_90", "5 bits"),
        (FusedF4(split_c=5), "sm_90", "at most 4 parts"),
    ],
)
def test_illegal_says_why(config: FusedF4, arch: str, reason: str) -> None:
    assert reason in (F4.illegal(config, RESNET, gpu_for(arch)) or "")


def test_supports_says_why_not() -> None:
    assert "llvm" in (F4.supports(RESNET, FULL, Cpu("generic", 128, 1)) or "")
    assert "cp.async" in (F4.supports(RESNET, FULL, GPUS["sm_75"]) or "")
    strided = dataclasses.replace(RESNET, stride=2)
    assert "stride" in (F4.supports(strided, FULL, SM90) or "")
    assert all(F4.supports(RESNET, FULL, gpu) is None for gpu in GPUS.values() if gpu.cc >= 80)


def test_auto_takes_it_for_few_filters_or_channels() -> None:
    """As measured on an H200: 86 us, the next best kernel 157; 91 and 128."""
    for spec in (ConvSpec(32, 64, 75, 75, 16), ConvSpec(8, 32, 128, 128, 96)):
        assert choose(spec, FULL, SM90).kernel is F4


def test_a_log_or_a_config_takes_it() -> None:
    config = FusedF4(lanes="kkpkp")
    assert F4.make_config(config_dict(config)) == config
    assert choose(RESNET, FULL, SM90, algorithm="winograd-f4").kernel is winograd_f4.KERNEL
    assert choose(RESNET, FULL, SM90, config=config).kernel is F4
    assert choose(RESNET, FULL, SM90, config=Fused()).kernel is not F4
