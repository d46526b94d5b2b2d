"""im2win: the transform against numpy, the CUDA schedules run on the CPU, the CPU schedules."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from convs import FULL, random_arrays
from cpu_kernels import check as check_cpu
from cpu_kernels import hardware, packed_on_the_device
from cuda_kernels import SM90, check, check_bounds, compiled

from tvm_winograd.choose.select import choose
from tvm_winograd.codegen.cubin import resources
from tvm_winograd.conv import scheduled as conv_scheduled
from tvm_winograd.gpu import GPUS, gpu_for, host_cpu
from tvm_winograd.passes.plan_workspaces import hoist_workspaces
from tvm_winograd.schedules.base.kernel import config_dict
from tvm_winograd.schedules.im2win.kernel import KERNEL, Im2win
from tvm_winograd.schedules.im2win.named import ablation
from tvm_winograd.schedules.im2win.search import default, portable
from tvm_winograd.schedules.on_cpu import im2win as im2win_cpu
from tvm_winograd.shapes import ConvSpec, Epilogue
from tvm_winograd.te import im2win
from tvm_winograd.truth import reference

CPU = im2win_cpu.KERNEL
# ragged in filters, rows, columns and vectors; three steps of channels
RAGGED = ConvSpec(n=4, c=6, h=15, w=21, k=70)
RESNET = ConvSpec(n=32, c=128, h=28, w=28, k=128)
LAYERS = {
    name: ConvSpec(n=1, c=c, h=h, w=h, k=k, r=r, s=r, stride=stride, padding=0)
    for name, (c, h, k, r, stride) in {
        "1": (3, 227, 96, 11, 4),
        "2": (3, 231, 96, 11, 4),
        "3": (3, 227, 64, 7, 2),
        "5": (96, 24, 256, 5, 1),
        "6": (256, 12, 512, 3, 1),
        "10": (128, 28, 128, 3, 1),
        "12": (512, 7, 512, 3, 1),
    }.items()
}
CONFIGS = [
    *(config for _, config in ablation(Im2win())),
    Im2win(parts=3),
    Im2win(store="shared"),
    Im2win(bk=96, bs=2, copies="registers", buffers=1, store="shared"),
    Im2win(store="shared", bh=1, bw=64, lanes="wkwkw"),
    Im2win(bh=1, bw=64, lanes="wkwkw"),
    Im2win(bk=96, bh=16, bw=5, th=2, tw=5, bs=2, bc=1),
    Im2win(bh=4, bw=16, lanes="hkwkh", unroll=1, buffers=2),
    Im2win(bk=16, tk=4, bh=16),
]
# windows in whole vectors: stride * C * R is a multiple of 4
FLAT = Im2win(bk=32, th=8, tw=1, lanes="wkwkw", bc=1, store="shared", buffers=2, flat=52)
PATCHES = ConvSpec(n=3, c=3, h=31, w=35, k=40, r=11, s=11, stride=4, padding=(1, 2, 0, 3))
FLATS = [
    *((PATCHES, dataclasses.replace(FLAT, store=store)) for store in ("direct", "shared")),
    *((dataclasses.replace(PATCHES, layout=layout), FLAT) for layout in ("NHWC", "CHWN")),
    (PATCHES, dataclasses.replace(FLAT, flat=20, copies="registers", buffers=1)),
    (ConvSpec(n=2, c=4, h=13, w=11, k=8, s=2), dataclasses.replace(FLAT, flat=12, bh=16)),
    (ConvSpec(n=2, c=4, h=9, w=9, k=8), Im2win(flat=8, bc=1, copies="plain", buffers=1)),
]
EDGES = [
    (ConvSpec(n=2, c=4, h=9, w=13, k=4), Epilogue()),
    (ConvSpec(n=1, c=1, h=1, w=1, k=1, r=1, s=1, padding=0), FULL),
    (ConvSpec(n=1, c=3, h=23, w=25, k=65, r=5, s=3, stride=3, padding=(0, 2, 3, 0)), FULL),
    (ConvSpec(n=3, c=9, h=12, w=10, k=17, stride=2, layout="NHWC"), Epilogue(residual=True)),
    (ConvSpec(n=2, c=9, h=9, w=16, k=64, dilation=2, padding=2, layout="NHWC"), FULL),
    (ConvSpec(n=33, c=8, h=4, w=3, k=3, layout="CHWN"), Epilogue(bias=True, relu6=True)),
    (ConvSpec(n=2, c=5, h=7, w=16, k=64, r=1, s=7, padding=(0, 3, 0, 3)), FULL),
]

# us at batch 32 (H200, 2026-11-30)
_FIRST = Im2win(bk=96, bw=8, bc=1, bs=4, store="shared", buffers=2)
_THIRD = Im2win(bc=1, store="shared", buffers=2)
MEASURED = {
    "1": {
        _FIRST: 242.2,
        dataclasses.replace(_FIRST, bw=11, tw=11): 284.9,
        dataclasses.replace(_FIRST, bw=11, tw=11, bs=5): 361.9,
        dataclasses.replace(_FIRST, bh=1, bw=88, tw=11, lanes="wkwkw"): 447.4,
        dataclasses.replace(_FIRST, bk=192, bh=4, bw=11, tw=11, lanes="hkkkh"): 562.9,
    },
    "3": {
        _THIRD: 222.9,
        dataclasses.replace(_THIRD, bh=16): 228.3,
        dataclasses.replace(_THIRD, buffers=3): 252.7,
        dataclasses.replace(_THIRD, bh=16, buffers=4): 253.7,
        dataclasses.replace(_THIRD, bh=1, bw=64, lanes="wkwkw"): 266.8,
    },
}


@pytest.mark.parametrize("layout", ["NCHW", "NHWC", "CHWN"])
@pytest.mark.parametrize("channels_last", [False, True])
def test_transform_puts_windows_in_memory_order(layout: str, channels_last: bool) -> None:
    import tvm
    from tvm import te

    spec = ConvSpec(2, 3, 8, 9, 4, r=3, s=2, stride=2, padding=(1, 0, 2, 1), layout=layout)
    tiling = im2win.Tiling(channels_last=channels_last)
    x = random_arrays(spec, Epilogue())[0]
    data = te.placeholder(spec.input_shape, "float32", name="X")
    out = im2win.transform(data, spec, tiling)
    got = tvm.runtime.tensor(np.full([int(v) for v in out.shape], np.nan, "float32"))
    tvm.compile(te.create_prim_func([data, out]), target="llvm")(tvm.runtime.tensor(x), got)
    windows = got.numpy().transpose(2, 0, 1) if channels_last else got.numpy()
    padded = np.pad(reference.to_nchw(x, layout), ((0, 0), (0, 0), (1, 2), (0, 1)))
    for n in range(spec.n):
        for oh in range(spec.oh):
            row = oh * spec.n + n if layout == "CHWN" else n * spec.oh + oh
            rows = padded[n, :, oh * 2 : oh * 2 + 3, : windows.shape[2] // 3]
            want = rows.transpose(0, 2, 1).reshape(spec.c, -1)
            np.testing.assert_array_equal(windows[:, row], want)


def test_a_window_is_one_run_of_memory() -> None:
    """A pixel's window starts stride * R words behind its neighbour's and has S * R words."""
    spec = ConvSpec(n=1, c=1, h=6, w=9, k=1, r=3, s=4, stride=2, padding=0)
    z = im2win.sizes(spec, im2win.Tiling())
    assert z.pitch == ((spec.ow - 1) * spec.stride + spec.s) * spec.r


@pytest.mark.parametrize("spec", LAYERS.values(), ids=LAYERS)
def test_footprint(spec: ConvSpec) -> None:
    """OH * W * R * C words an image plus padding to tiles, not OH * OW * R * S * C."""
    spec = dataclasses.replace(spec, n=64)
    config = default(spec, SM90)
    z = im2win.sizes(spec, config.tiling)
    columns = (spec.ow - 1) * spec.stride + spec.s
    assert im2win.footprint(spec) == 64 * spec.c * spec.oh * columns * spec.r
    assert im2win.footprint(spec) <= z.workspace <= 1.15 * im2win.footprint(spec)
    assert z.workspace < im2win.im2col_footprint(spec) / 1.7


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_scheduled_program_is_the_convolution(config: Im2win) -> None:
    check(KERNEL, RAGGED, FULL, config)


@pytest.mark.parametrize(("spec", "config"), FLATS)
def test_windows_in_whole_vectors(spec: ConvSpec, config: Im2win) -> None:
    check(KERNEL, spec, FULL, config)


@pytest.mark.parametrize("make", [lambda s: default(s, SM90), portable], ids=["async", "reg"])
@pytest.mark.parametrize(("spec", "epilogue"), EDGES, ids=lambda v: v.key())
def test_any_shape(spec: ConvSpec, epilogue: Epilogue, make: object) -> None:
    check(KERNEL, spec, epilogue, make(spec))


def test_inside_its_arrays() -> None:
    check_bounds(ConvSpec(3, 5, 7, 9, 70, padding=(2, 0, 1, 2)), KERNEL.algorithm)


@pytest.mark.parametrize(("spec", "epilogue"), EDGES, ids=lambda v: v.key())
def test_any_shape_on_the_cpu(spec: ConvSpec, epilogue: Epilogue) -> None:
    for name in ("host", "baseline"):
        cpu = hardware(name)
        for config in CPU.configs(spec, cpu)[:2]:
            check_cpu(CPU, spec, epilogue, config, cpu)


def test_every_cpu_config() -> None:
    for config in CPU.configs(RAGGED, host_cpu()):
        check_cpu(CPU, RAGGED, FULL, config, host_cpu())


@pytest.mark.parametrize("name", ["1", "6", "12"])
def test_layers_of_the_papers_on_the_cpu(name: str) -> None:
    spec = LAYERS[name]
    check_cpu(CPU, spec, Epilogue(), CPU.configs(spec, host_cpu())[0], host_cpu())


@pytest.mark.parametrize("spec", [RAGGED, EDGES[2][0], EDGES[4][0]], ids=ConvSpec.key)
def test_weight_transform_equals_pack_weights(spec: ConvSpec) -> None:
    for kernel, config in (
        (KERNEL, Im2win(bs=2)),
        (KERNEL, FLAT),
        (KERNEL, default(spec, SM90)),
        *((CPU, c) for c in CPU.configs(spec, host_cpu())[:2]),
    ):
        got, want = packed_on_the_device(kernel, spec, config)
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("arch", ["sm_75", "sm_90"])
def test_default_compiles_without_spills(arch: str) -> None:
    config = dataclasses.replace(default(RESNET, gpu_for(arch)), unroll=512)
    done = compiled(KERNEL, RESNET, config, arch)
    kernels = resources(done.binary, done.log)
    assert sorted(k.max_threads for k in kernels) == [config.conv_threads, config.threads]
    for kernel in kernels:
        assert (kernel.local_bytes, kernel.spill_stores, kernel.spill_loads) == (0, 0, 0)
    assert ("cp_async" in done.source) == gpu_for(arch).has_async_copy


@pytest.mark.parametrize("parts", [1, 4])
def test_workspace_and_shared_memory_are_what_the_config_says(parts: int) -> None:
    config = Im2win(parts=parts)
    choice = choose(RESNET, FULL, SM90, algorithm="im2win", config=config)
    mod, report = conv_scheduled(RESNET, FULL, SM90, choice)
    _, workspaces = hoist_workspaces(mod["conv"])
    assert sum(w.bytes for w in workspaces) == config.workspace_bytes(RESNET)
    assert report["shared_bytes"] == config.shared_for(RESNET)


def test_large_filters_get_it_by_estimate_on_a_gpu() -> None:
    large = ConvSpec(n=4, c=512, h=50, w=50, k=96, r=5, s=5, padding=2)
    for spec, where, chosen in (
        (RESNET, SM90, False),
        (RESNET, host_cpu(), False),
        (large, SM90, True),  # 629 us measured against 748 of the next
        (dataclasses.replace(large, layout="NHWC"), SM90, False),
        (large, host_cpu(), False),
    ):
        assert (choose(spec, FULL, where).algorithm == "im2win") == chosen
        assert choose(spec, FULL, where, algorithm="im2win").source == "default"


@pytest.mark.parametrize(("name", "measured"), MEASURED.items())
def test_estimate_ranks_configs_as_measured(name: str, measured: dict[Im2win, float]) -> None:
    spec = dataclasses.replace(LAYERS[name], n=32)
    estimates = {config: KERNEL.seconds(config, spec, SM90) * 1e6 for config in measured}
    assert measured[min(estimates, key=estimates.get)] <= 1.05 * min(measured.values())
    for config, us in measured.items():
        assert us / 1.3 < estimates[config] < us * 1.3


@pytest.mark.parametrize(
    ("change", "arch", "reason"),
    [
        ({}, "sm_75", "cp.async"),
        ({"lanes": "hkhk"}, "sm_90", "5 bits"),
        ({"lanes": "hkhkw"}, "sm_90", "do not divide"),
        ({"tk": 6, "bk": 48}, "sm_90", "multiple of 4"),
        ({"bk": 60}, "sm_90", "does not divide"),
        ({"tw": 4, "bw": 6}, "sm_90", "tw=4 does not divide"),
        ({"buffers": 1}, "sm_90", "buffers=1"),
        ({"buffers": 64}, "sm_90", "shared memory"),
        ({"copies": "tma"}, "sm_90", "async, registers, plain"),
        ({"store": "tma"}, "sm_90", '"direct" or "shared"'),
        ({"tw": 32, "bw": 32}, "sm_90", "registers"),
        ({"bs": 4}, "sm_90", "the filter has 3 columns"),
        ({"bc": 0}, "sm_90", "positive integer"),
        ({"threads": 48}, "sm_90", "whole warps"),
        ({"flat": 6}, "sm_90", "multiple of 4"),
        ({"flat": 8}, "sm_90", "bc=1"),
    ],
)
def test_illegal_says_why(change: dict, arch: str, reason: str) -> None:
    config = dataclasses.replace(Im2win(), **change)
    assert reason in (KERNEL.illegal(config, RESNET, gpu_for(arch)) or "")


def test_supports_says_why_not() -> None:
    assert "llvm" in (KERNEL.supports(RESNET, FULL, host_cpu()) or "")
    assert "llvm" in (CPU.supports(RESNET, FULL, SM90) or "")
    for change, reason in (
        ({"groups": 2}, "groups 1"),
        ({"dtype": "float16"}, "float32"),
        ({"n": 4000, "h": 200, "w": 200}, "32-bit"),
    ):
        spec = dataclasses.replace(RESNET, **change)
        assert reason in (KERNEL.supports(spec, FULL, SM90) or "")
        assert reason in (CPU.supports(spec, FULL, host_cpu()) or "")
    for gpu in GPUS.values():
        assert KERNEL.supports(RESNET, FULL, gpu) is None


def test_every_config_is_legal_and_survives_a_log() -> None:
    for spec in (RESNET, RAGGED, *LAYERS.values()):
        for gpu in GPUS.values():
            configs = KERNEL.configs(spec, gpu)
            assert configs[0] == default(spec, gpu) and len(configs) == len(set(configs))
            for config in configs:
                assert KERNEL.illegal(config, spec, gpu) is None
                assert KERNEL.make_config(config_dict(config)) == config


# bk, bh, bw, tk, th, tw of the fastest of a wide scan at batch 32 (H200, 2026-11-30)
FASTEST = {"6": (32, 16, 10, 4, 1, 10), "10": (128, 16, 4, 8, 2, 4), "12": (128, 8, 5, 8, 1, 5)}


@pytest.mark.parametrize(("name", "fastest"), FASTEST.items())
def test_candidates_have_the_fastest_tiles(name: str, fastest: tuple[int, ...]) -> None:
    configs = KERNEL.configs(dataclasses.replace(LAYERS[name], n=32), SM90)
    assert fastest in {(c.bk, c.bh, c.bw, c.tk, c.th, c.tw) for c in configs}


def test_sums_of_parts_are_stored_in_vectors() -> None:
    spec = ConvSpec(n=32, c=256, h=14, w=14, k=256, padding=0)  # 140 us against 156
    config = default(spec, SM90)
    assert config.parts > 1 and config.tw % 4 == 0 and config.store == "direct"
