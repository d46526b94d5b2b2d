"""Which kernel, with which config, and the reason."""

import pytest
from tvm_winograd.schedules import winograd_fused

from tvm_winograd import ConvSpec, Epilogue, TvmWinogradError
from tvm_winograd.gpu import GPUS, PORTABLE, Cpu, gpu_for, parse_archs
from tvm_winograd.select import choose

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
        assert choice.algorithm == "winograd-f2"
        assert choice.kernel.illegal(choice.config, spec, gpu) is None


def test_architectures():
    assert parse_archs("sm_90, sm_86,sm_90") == ["sm_90", "sm_86"]
    assert parse_archs(None) == ["sm_90"]
    for bad in ("sm_35", "90", ","):
        with pytest.raises(TvmWinogradError, match="sm_75"):
            parse_archs(bad)
