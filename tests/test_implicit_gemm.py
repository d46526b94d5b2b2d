"""Implicit GEMM and im2col without a GPU: schedules run on the CPU, their code through ptxas."""

from __future__ import annotations

import dataclasses
from itertools import cycle

import numpy as np
import pytest
from convs import FULL
from cpu_kernels import packed_on_the_device
from cuda_kernels import SM90, check, check_bounds, compiled, scheduled
from test_winograd_fused import launch_shared_bytes

from tvm_winograd.choose.select import choose
from tvm_winograd.codegen.cubin import resources
from tvm_winograd.gpu import GPUS, PORTABLE, Cpu, gpu_for
from tvm_winograd.schedules.base.kernel import Kernel, config_dict
from tvm_winograd.schedules.gemm import kernel as product
from tvm_winograd.schedules.gemm.config import ROW_PAD
from tvm_winograd.schedules.gemm.kernel import IM2COL, KERNEL, Im2col, Implicit
from tvm_winograd.schedules.gemm.legal import MAX_PARTS
from tvm_winograd.schedules.gemm.search import LADDER
from tvm_winograd.shapes import LAYOUTS, ConvSpec, Epilogue

POINTWISE = ConvSpec(n=32, c=256, h=14, w=14, k=1024, r=1, s=1, padding=0)
STRIDED = ConvSpec(n=32, c=256, h=14, w=14, k=512, stride=2)  # 7x7 maps
STEM = ConvSpec(n=32, c=3, h=224, w=224, k=64, r=7, s=7, stride=2, padding=3)
# Two ragged blocks of filters, three of pixels, and channels that no step divides
RAGGED = ConvSpec(n=2, c=10, h=11, w=13, k=70, stride=2)
DOWN = dataclasses.replace(STRIDED, n=128, c=64, h=56, w=56, k=128)
# Products of a step of its default, with these changes
STEPS = [({}, 18), ({"k": 64}, 9), ({"n": 1}, 16), ({"padding": 0}, 8), ({"layout": "NHWC"}, 8)]
RAGGED_1X1 = ConvSpec(n=3, c=20, h=6, w=6, k=70, r=1, s=1, padding=0)
REGISTERS = Implicit(weights="registers", inputs="registers", buffers=1)
SMALL = LADDER[-1]
CONFIGS = [
    *LADDER,
    REGISTERS,
    Implicit(inputs="registers", buffers=2),
    Implicit(bc=9, taps_inner=True, buffers=2),
    Implicit(bk=128, bc=18, taps_inner=True, buffers=2),
    Implicit(bp=32, tp=4, bc=36, taps_inner=True, buffers=2, parts=2),
    Implicit(bk=32, bp=32, tk=4, lanes="pkkkp", bc=7, taps_inner=True),
    Implicit(parts=3),
    dataclasses.replace(SMALL, parts=2, bc=4),
    dataclasses.replace(REGISTERS, parts=9),
]
WORKSPACE = [
    Im2col(),
    Im2col(parts=3, bk=32, tk=4, lanes="ppkkp"),
    Im2col(weights="registers", buffers=1, taps_inner=True),
]


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_scheduled_program_is_the_convolution(config: Implicit) -> None:
    check(KERNEL, RAGGED, FULL, config)


@pytest.mark.parametrize("tile", [Implicit(), SMALL], ids=str)
@pytest.mark.parametrize("parts", [1, 2])
def test_vectors_of_pixels(tile: Implicit, parts: int) -> None:
    for inputs in ("async16", "async4"):
        config = dataclasses.replace(tile, store="pixels", inputs=inputs, parts=parts)
        check(KERNEL, RAGGED_1X1, FULL, config)


@pytest.mark.parametrize("config", WORKSPACE, ids=str)
def test_im2col_is_the_convolution(config: Im2col) -> None:
    check(IM2COL, RAGGED, FULL, config)


SHAPES = [
    (ConvSpec(n=1, c=1, h=1, w=1, k=1, r=1, s=1, padding=0), FULL),
    (ConvSpec(n=2, c=3, h=22, w=18, k=16, r=7, s=7, stride=2, padding=3), Epilogue(bias=True)),
    (ConvSpec(n=2, c=8, h=9, w=7, k=5, r=2, s=3, padding=(0, 2, 1, 0)), Epilogue()),
    (ConvSpec(n=1, c=5, h=8, w=8, k=9, r=5, s=1, dilation=2, padding=(4, 0, 4, 0)), FULL),
    (ConvSpec(n=1, c=16, h=11, w=9, k=8, stride=3, dilation=2, padding=2), Epilogue(relu6=True)),
    (ConvSpec(n=2, c=24, h=8, w=8, k=16, groups=2), FULL),
    (ConvSpec(n=2, c=12, h=5, w=5, k=18, groups=3, stride=2), Epilogue(residual=True)),
    (ConvSpec(n=2, c=16, h=9, w=8, k=12, r=1, s=1, stride=2, padding=0), FULL),
    (ConvSpec(n=1, c=8, h=4, w=4, k=8, r=1, s=1, padding=1), FULL),
]


@pytest.mark.parametrize(("spec", "epilogue"), SHAPES, ids=lambda v: v.key())
def test_any_shape(spec: ConvSpec, epilogue: Epilogue) -> None:
    check(KERNEL, spec, epilogue, product.default(spec, SM90))


@pytest.mark.parametrize(("spec", "epilogue"), SHAPES[::3], ids=lambda v: v.key())
def test_portable(spec: ConvSpec, epilogue: Epilogue) -> None:
    check(KERNEL, spec, epilogue, product.portable(spec))


@pytest.mark.parametrize(
    ("layout", "dtype"),
    [(layout, dtype) for layout in LAYOUTS for dtype in ("float32", "int8")]
    + [("NCHW", "float16"), ("NHWC", "bfloat16")],
)
def test_any_layout_and_dtype(layout: str, dtype: str) -> None:
    """Pixels, filters or neither are neighbours in memory; the reduction is whole or in parts."""
    for n, k, parts in ((4, 12, 1 + 2 * (dtype == "float32")), (3, 9, 3)):
        spec = ConvSpec(n=n, c=8, h=5, w=4 + n, k=k, stride=2, dtype=dtype, layout=layout)
        check(KERNEL, spec, FULL, dataclasses.replace(product.default(spec, SM90), parts=parts))
    if dtype == "float32":
        check(IM2COL, spec, FULL, IM2COL.configs(spec, SM90)[0])


@pytest.mark.parametrize("spec", [RAGGED, RAGGED_1X1], ids=lambda v: v.key())
def test_inside_its_arrays(spec: ConvSpec) -> None:
    check_bounds(spec, KERNEL.algorithm)


@pytest.mark.parametrize("config", [Implicit(), Implicit(bc=9, taps_inner=True, parts=3)], ids=str)
def test_weights_packed_on_the_device(config: Implicit) -> None:
    for spec in (RAGGED, SHAPES[5][0]):
        got, want = packed_on_the_device(KERNEL, spec, config)
        np.testing.assert_array_equal(got, want)


def compile_cleanly(kernel: Kernel, spec: ConvSpec, config: Implicit | Im2col, arch: str) -> str:
    """The CUDA source; fails if ptxas had to use local memory."""
    done = compiled(kernel, spec, config, arch)
    assert done.kind == "cubin"
    for found in resources(done.binary, done.log):
        assert (found.local_bytes, found.spill_stores, found.spill_loads) == (0, 0, 0)
    return done.source


LARGE = (STRIDED, STEM, POINTWISE)
LAYERS = (*LARGE, *(dataclasses.replace(spec, n=1) for spec in (*LARGE, STRIDED)))


@pytest.mark.parametrize(
    ("arch", "spec"), [*zip(GPUS, cycle(LAYERS), strict=False)], ids=lambda v: str(v)[:6]
)
def test_default_compiles_without_spills(arch: str, spec: ConvSpec) -> None:
    compile_cleanly(KERNEL, spec, product.default(spec, gpu_for(arch)), arch)


def main_loop(source: str) -> str:
    """The main loop of the product, the one loop that is not unrolled."""
    loop = source[source.index("  for (int") :]
    return loop[: loop.index("\n  }")]


def test_pointwise_source_copies_vectors_ahead() -> None:
    config = product.default(POINTWISE, gpu_for("sm_86"))
    assert (config.inputs, config.store) == ("async16", "pixels")
    loop = main_loop(compile_cleanly(KERNEL, POINTWISE, config, "sm_86"))
    assert loop.count("__syncthreads()") == 2
    copies = config.bc * (config.bk + config.bp) // 4 // config.threads
    assert loop.count("cp_async_legacy_cg_16_4_4(") == copies
    assert loop.count("commit_group();") == 1
    assert "?" not in loop and "guarded" not in loop


def test_stem_steps_through_rows_of_taps() -> None:
    config = product.default(STEM, gpu_for("sm_80"))
    assert (config.bc, config.taps_inner, config.store) == (7, True, "pixels")
    loop = main_loop(compile_cleanly(KERNEL, STEM, config, "sm_80"))
    assert loop.count("cp_async_guarded_ca_4_4_4(") == 7 * config.bp // config.threads


def test_steps_of_whole_channels_guard_once() -> None:
    """No guard depends on the step: ptxas computes them before the loop."""
    loop = main_loop(compile_cleanly(KERNEL, DOWN, product.default(DOWN, SM90), "sm_90"))
    guarded = [line.split(", ") for line in loop.splitlines() if "guarded_ca_4_4_4(" in line]
    assert len(guarded) == 7 and loop.count("_ca_4_4_4(") == 9
    assert all("ax9_0" in source and "ax9_0" not in guard for *_, source, guard in guarded)


@pytest.mark.parametrize(("changed", "bc"), STEPS, ids=str)
def test_whole_channels_are_the_default_where_guards_cost(changed: dict, bc: int) -> None:
    """3x3 with stride 2 as measured on an H200: 311, not 344 us; batch 1 7.7 as it was."""
    spec = dataclasses.replace(DOWN, **changed)
    first, *others = KERNEL.configs(spec, SM90)
    assert (first.bc, first.taps_inner) == (bc, bc in (9, 18))
    assert not IM2COL.configs(spec, SM90)[0].taps_inner
    tried = {(c.bk, c.parts) for c in (first, *others) if (c.bc, c.buffers) == (18, 2)}
    assert tried >= {(64, 1), (64, 2), (128, 1), (128, 2)}


def test_parts_and_float16_compile_without_spills() -> None:
    """In NHWC with three blocks of filters: fused with pixels, TVM lost track of a thread's own."""
    spec = dataclasses.replace(STRIDED, dtype="float16", n=1, k=96, layout="NHWC")
    config = product.default(spec, SM90)
    assert config.parts == MAX_PARTS
    compile_cleanly(KERNEL, spec, config, "sm_90")


def test_im2col_compiles_without_spills() -> None:
    compile_cleanly(IM2COL, STRIDED, Im2col(bk=32, bp=32, tk=4, tp=4), "sm_90")


def test_default_follows_the_batch() -> None:
    """Large tiles at batch 128; small ones, and parts of long sums, at batch 1."""
    many, one = (product.default(dataclasses.replace(STRIDED, n=n), SM90) for n in (128, 1))
    assert many.bk * many.bp >= 64 * 64 and many.parts == 1
    assert one.bk * one.bp < 64 * 64 and one.parts > 1


def test_default_comes_first_and_every_config_is_legal() -> None:
    for spec in (POINTWISE, STRIDED, STEM, RAGGED, dataclasses.replace(STRIDED, n=1)):
        for gpu in (*GPUS.values(), PORTABLE):
            for kernel in (KERNEL, IM2COL):
                configs = kernel.configs(spec, gpu)
                assert 24 >= len(set(configs)) == len(configs) > 3
                assert all(kernel.illegal(c, spec, gpu) is None for c in configs)
            assert KERNEL.configs(spec, gpu)[0] == product.default(spec, gpu)
            assert KERNEL.illegal(product.portable(spec), spec, PORTABLE) is None


@pytest.mark.parametrize(
    ("config", "arch", "reason"),
    [
        (Implicit(), "sm_75", "cp.async"),
        (Implicit(lanes="ppkk"), "sm_90", "5 bits"),
        (Implicit(lanes="ppkkk", bk=32), "sm_90", "divide"),
        (Implicit(bk=512, bp=512), "sm_90", "1024"),
        (Implicit(bk=128, bp=128, tk=16, tp=16), "sm_90", "registers"),
        (Implicit(bc=16, buffers=16), "sm_86", "shared memory"),
        (Implicit(tk=6), "sm_90", "multiples of 4"),
        (Implicit(bc=0), "sm_90", "positive integer"),
        (Implicit(weights="tma"), "sm_90", '"async" or "registers"'),
        (Implicit(inputs="workspace"), "sm_90", "async16, async4, registers"),
        (Im2col(inputs="async4"), "sm_90", "workspace"),
        (Implicit(weights="registers", buffers=1), "sm_90", "one pipeline"),
        (Implicit(buffers=1), "sm_90", "buffers=1"),
        (Implicit(inputs="registers", buffers=2, bk=128, bc=7), "sm_90", "cannot share"),
        (Implicit(store="rows"), "sm_90", "one of"),
        (Implicit(store="pixels"), "sm_90", "neighbours"),
        (Implicit(store="filters"), "sm_90", "NHWC"),
        (Implicit(inputs="async16"), "sm_90", "neighbours"),
        (Implicit(parts=17), "sm_90", "at most 16"),
    ],
)
def test_illegal_says_why(config: Implicit, arch: str, reason: str) -> None:
    assert reason in (KERNEL.illegal(config, STRIDED, gpu_for(arch)) or "")


def test_long_sums_are_taken_in_parts() -> None:
    long = dataclasses.replace(STRIDED, c=512, n=128)
    assert "4608 products" in (KERNEL.illegal(Implicit(), long, SM90) or "")
    assert {product.default(long, SM90).parts, product.portable(long).parts} == {2}
    assert KERNEL.illegal(Implicit(), STRIDED, SM90) is None


def test_shared_bytes_is_what_the_launch_asks_for() -> None:
    for spec, padding in ((RAGGED, ROW_PAD), (dataclasses.replace(RAGGED, layout="NHWC"), 0)):
        for config in (Implicit(), REGISTERS):
            asked = launch_shared_bytes(scheduled(KERNEL, spec, Epilogue(), config))
            assert config.shared_bytes - asked == 4 * config.buffers * config.bc * padding


def test_illegal_depends_on_the_convolution() -> None:
    assert "one empty" in (KERNEL.illegal(Implicit(parts=9), RAGGED_1X1, SM90) or "")
    seven = Implicit(inputs="registers", buffers=2, bc=7)
    assert KERNEL.illegal(seven, STRIDED, SM90) is None
    nhwc = dataclasses.replace(STRIDED, layout="NHWC")
    assert "several channels" in (KERNEL.illegal(seven, nhwc, SM90) or "")
    half = dataclasses.replace(STRIDED, dtype="float16")
    assert "convert float16" in (KERNEL.illegal(Implicit(), half, SM90) or "")


def test_supports_says_why_not() -> None:
    assert "llvm" in (KERNEL.supports(STRIDED, FULL, Cpu("generic", 128, 1)) or "")
    depthwise = ConvSpec(n=1, c=32, h=9, w=9, k=32, groups=32)
    assert "empty" in (KERNEL.supports(depthwise, FULL, SM90) or "")
    large = ConvSpec(n=1, c=64, h=8000, w=8000, k=64, r=1, s=1, padding=0)
    assert "32-bit" in (KERNEL.supports(large, FULL, SM90) or "")
    assert "use gemm" in (IM2COL.supports(POINTWISE, FULL, SM90) or "")
    for gpu in GPUS.values():
        assert KERNEL.supports(STRIDED, FULL, gpu) is None


def test_config_survives_a_log() -> None:
    for kernel, config in ((KERNEL, Implicit(parts=3)), (IM2COL, Im2col(bc=4))):
        assert kernel.make_config(config_dict(config)) == config


LARGE = ConvSpec(n=8, c=128, h=224, w=224, k=32, stride=2)


@pytest.mark.parametrize("spec", [POINTWISE, LARGE, STEM], ids=lambda v: v.key())
def test_auto_takes_it_where_winograd_does_not_apply(spec: ConvSpec) -> None:
    choice = choose(spec, FULL, SM90)
    assert (choice.kernel, choice.source) == (KERNEL, "default")
    assert choose(spec, FULL, SM90, algorithm="gemm").kernel is KERNEL


def test_im2col_where_it_is_worth_its_memory() -> None:
    """As measured on an H200: 16, not 21 us; else who asks for it gets it."""
    small = ConvSpec(n=4, c=32, h=56, w=56, k=256, stride=2)
    assert choose(small, FULL, SM90).kernel is IM2COL
    assert "too little saved" in choose(LARGE, FULL, SM90).reason
    choice = choose(LARGE, FULL, SM90, algorithm="im2col")
    assert (choice.kernel, choice.source) == (IM2COL, "default")
    assert choose(STRIDED, FULL, SM90, config=Im2col()).kernel is IM2COL
