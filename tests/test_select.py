"""Which kernel, with which config, and the reason."""

import re
from dataclasses import replace

import pytest

from tvm_winograd import ConvSpec, Epilogue, TvmWinogradError
from tvm_winograd.choose.options import Limits
from tvm_winograd.choose.select import allows, choose, forbidden
from tvm_winograd.gpu import GPUS, PORTABLE, Cpu, gpu_for, parse_archs
from tvm_winograd.schedules import KERNELS
from tvm_winograd.schedules.base.kernel import config_dict
from tvm_winograd.schedules.im2win import search as im2win_search
from tvm_winograd.schedules.winograd_fused import kernel as winograd_fused
from tvm_winograd.schedules.winograd_staged import kernel as winograd_f4
from tvm_winograd.tables import lookup as logs

H200, CPU = gpu_for("sm_90"), Cpu("znver4", 512, 2)
RESNET = ConvSpec(1, 64, 56, 56, 64)
STRIDED = ConvSpec(1, 64, 56, 56, 128, stride=2)


def test_winograd_where_it_applies():
    choice = choose(RESNET, Epilogue(), H200)
    assert (choice.algorithm, choice.source) == ("winograd-f2", "default")
    assert "sm_90" in choice.reason


def test_gemm_where_winograd_does_not_apply():
    choice = choose(STRIDED, Epilogue(), H200)
    assert (choice.algorithm, choice.source) == ("gemm", "default")
    assert "stride 1, got 2" in choice.reason


def test_fallback_says_why():
    choice = choose(ConvSpec(1, 1024, 9, 9, 4, stride=2, groups=2), Epilogue(), H200)
    assert (choice.algorithm, choice.source) == ("direct", "fallback")
    assert "stride 1, got 2" in choice.reason and "dlight" in choice.reason


@pytest.mark.parametrize("hardware", [H200, CPU])
@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (STRIDED, "stride 1, got 2"),
        (ConvSpec(1, 8, 9, 9, 8, dilation=2), "dilation 1, got 2"),
        (ConvSpec(1, 8, 9, 9, 8, groups=2), "groups 1, got 2"),
        (ConvSpec(1, 8, 9, 9, 8, r=1, s=1), "3x3 filter, got 1x1"),
        (ConvSpec(1, 8, 9, 9, 8, dtype="int8"), "int8"),
        (ConvSpec(64, 512, 512, 512, 8), "2\\^31"),
    ],
)
def test_forced_winograd_is_refused_with_the_reason(spec, why, hardware):
    with pytest.raises(TvmWinogradError, match=why):
        choose(spec, Epilogue(), hardware, algorithm="winograd")


def test_the_fastest_by_estimate():
    """As measured on an H200: F(2x2) at batch 1, F(4x4) from batch 8 on, 1x1 by GEMM."""
    assert choose(RESNET, Epilogue(), H200).algorithm == "winograd-f2"
    for n in (8, 32, 128):
        choice = choose(replace(RESNET, n=n), Epilogue(), H200)
        assert choice.algorithm == "winograd-f4"
        times = [float(x) for x in re.findall(r"estimated ([\d.]+) us", choice.reason)]
        assert len(times) >= 4 and times[0] == min(times)


@pytest.mark.parametrize("kernel", [k for k in KERNELS if k.least], ids=lambda k: k.name)
@pytest.mark.parametrize("gpu", [gpu_for("sm_80"), H200, PORTABLE], ids=lambda g: g.arch)
def test_no_estimate_is_below_the_least(kernel, gpu):
    """Else a kernel would be passed by that may be fastest."""
    layers = [
        RESNET,
        STRIDED,
        ConvSpec(32, 256, 14, 14, 512, r=1, s=1, padding=0),
        ConvSpec(3, 3, 33, 40, 24, r=7, s=7, padding=3, stride=2),
        ConvSpec(128, 512, 7, 7, 512),
    ]
    for spec in layers:
        if kernel.supports(spec, Epilogue(), gpu) is None:
            times = [kernel.seconds(c, spec, gpu) for c in kernel.configs(spec, gpu)]
            assert kernel.least(spec, gpu) <= min(times), spec


def test_what_cannot_win_is_not_searched(monkeypatch):
    spec = ConvSpec(32, 128, 28, 28, 128)
    monkeypatch.setattr(im2win_search, "_ranked", None)
    choice = choose(spec, Epilogue(), H200)
    assert choice.algorithm == "winograd-f4"
    assert re.search(r"im2win-cuda: estimated [\d.]+ us or more", choice.reason)


def test_limits_on_the_error():
    many = replace(RESNET, n=32)
    assert choose(many, Epilogue(), H200).algorithm == "winograd-f4"
    exact = choose(many, Epilogue(), H200, limits=Limits(max_error=1e-6))
    assert exact.algorithm == "winograd-f2" and "F(4x4)" not in exact.reason
    assert "may err by 5e-06" in exact.reason
    with pytest.raises(TvmWinogradError, match="may err"):
        choose(many, Epilogue(), H200, limits=Limits(max_error=1e-9))


def test_limits_on_the_workspace():
    many = replace(RESNET, n=32)
    choice = choose(many, Epilogue(), H200, limits=Limits(workspace=0))
    assert choice.kernel is winograd_fused.F4 and choice.config.split_c == 1
    few = replace(many, n=1, c=512, k=512, h=7, w=7)
    assert choose(few, Epilogue(), H200).config.split_c > 1
    assert choose(few, Epilogue(), H200, limits=Limits(workspace=0)).config.split_c == 1
    deep = replace(many, c=256, k=256, h=14, w=14)
    half = winograd_f4.KERNEL.workspace(choose(deep, Epilogue(), H200).config, deep) // 2
    limits = Limits(("winograd-f4",), workspace=half)
    assert choose(deep, Epilogue(), H200, limits=limits).config.chunks > 1


def test_limits_on_the_algorithms():
    choice = choose(RESNET, Epilogue(), H200, limits=Limits(("gemm", "im2col")))
    assert choice.algorithm == "gemm"
    with pytest.raises(TvmWinogradError, match="none of the allowed winograd"):
        choose(STRIDED, Epilogue(), H200, limits=Limits(("winograd",)))
    for bad in ({"algorithms": ("fft",)}, {"algorithms": ()}, {"max_error": -1}, {"workspace": -1}):
        with pytest.raises(TvmWinogradError):
            Limits(**bad)


def row_of(kernel, spec, us, **knobs):
    """A row as a tuner writes it: the kernel's default config with these knobs."""
    config = replace(kernel.configs(spec, H200)[0], **knobs)
    values, key = config_dict(config), Epilogue().key()
    return logs.Row(
        "NVIDIA H200", "sm_90", spec.key(), key, kernel.name, values, us, kernel.algorithm
    )


def test_limits_hold_for_tables_too():
    many = replace(RESNET, n=32)
    rows = [
        row_of(winograd_fused.KERNEL, many, us=3.0, split_c=1),
        row_of(winograd_fused.F4, many, us=2.0, split_c=1),
        row_of(winograd_f4.KERNEL, many, us=1.0),
    ]
    needed = winograd_f4.KERNEL.workspace(choose(many, Epilogue(), H200, rows=rows).config, many)
    assert needed > 0
    for limits, kernel in (
        (Limits(), winograd_f4.KERNEL),
        (Limits(workspace=needed), winograd_f4.KERNEL),
        (Limits(workspace=needed - 1), winograd_fused.F4),
        (Limits(("winograd-f4",), workspace=0), winograd_fused.F4),
        (Limits(max_error=1e-6), winograd_fused.KERNEL),
        (Limits(("winograd-f2", "direct"), workspace=0), winograd_fused.KERNEL),
    ):
        choice = choose(many, Epilogue(), H200, rows=rows, limits=limits)
        assert (choice.kernel, choice.source) == (kernel, "log"), limits
        near = choose(replace(many, n=16), Epilogue(bias=True), H200, rows=rows, limits=limits)
        assert near.source == "log-nearest" and forbidden(limits, near.kernel, many) is None
    none = choose(many, Epilogue(), H200, rows=rows, limits=Limits(("gemm",)))
    assert (none.algorithm, none.source) == ("gemm", "default")


def test_limits_hold_for_the_shipped_tables():
    rows, _ = logs.read_folder(logs.shipped_folder(), "sm_90")
    for key in sorted({row.spec for row in rows})[::7]:
        spec = logs.spec_of(key)
        for limits in (Limits(max_error=1e-6), Limits(workspace=0), Limits(("gemm", "direct"))):
            choice = choose(spec, Epilogue(), H200, rows=rows, limits=limits)
            assert forbidden(limits, choice.kernel, spec) is None
            assert allows(limits, choice.kernel, choice.config, spec)


def test_unknown_and_missing_algorithms():
    with pytest.raises(TvmWinogradError, match=r"fft.*there are auto"):
        choose(RESNET, Epilogue(), H200, algorithm="fft")
    with pytest.raises(TvmWinogradError, match=r"winograd-f4.*no kernel for llvm"):
        choose(RESNET, Epilogue(), CPU, algorithm="winograd-f4")


def test_explicit_config_wins_and_is_checked():
    config = winograd_fused.KERNEL.configs(RESNET, H200)[-1]
    choice = choose(RESNET, Epilogue(), H200, config=config)
    assert (choice.config, choice.source) == (config, "explicit")
    with pytest.raises(TvmWinogradError, match="a config of these kernels"):
        choose(RESNET, Epilogue(), H200, config={"bk": 64})


def test_an_explicit_config_too_large_for_the_gpu():
    large = winograd_fused.KERNEL.configs(RESNET, H200)[0]
    turing = gpu_for("sm_75")
    reason = winograd_fused.KERNEL.illegal(large, RESNET, turing)
    assert reason is not None
    with pytest.raises(TvmWinogradError) as refused:
        choose(RESNET, Epilogue(), turing, config=large)
    assert reason in str(refused.value)


@pytest.mark.parametrize("gpu", [*GPUS.values(), PORTABLE], ids=lambda g: g.arch)
def test_every_default_is_legal(gpu):
    for spec in (RESNET, ConvSpec(2, 5, 9, 13, 4), ConvSpec(1, 1, 1, 1, 1)):
        choice = choose(spec, Epilogue(), gpu)
        assert choice.source == "default"
        assert choice.kernel.illegal(choice.config, spec, gpu) is None


def test_architectures():
    assert parse_archs("sm_90, sm_86,sm_90") == ["sm_90", "sm_86"]
    for bad in ("sm_35", "90", ","):
        with pytest.raises(TvmWinogradError, match="sm_75"):
            parse_archs(bad)
