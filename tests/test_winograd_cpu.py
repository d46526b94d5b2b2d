"""Winograd on the CPU: every config on ragged shapes, every layout and dtype, narrow CPUs."""

from __future__ import annotations

import numpy as np
import pytest
from convs import FULL
from cpu_kernels import check, compile_config, error_of, hardware, packed_on_the_device

from tvm_winograd.gpu import Cpu, gpu_for, host_cpu
from tvm_winograd.schedules.on_cpu.winograd import KERNEL, WinogradCpuConfig
from tvm_winograd.shapes import LAYOUTS, ConvSpec, Epilogue

# odd maps: the last row and column of tiles are cut; K and P never fill their blocks but in
# "whole tiles"; batch > 1 puts several images into one block of tiles
SPECS = {
    "ragged": ConvSpec(n=2, c=5, h=9, w=13, k=19, padding=(0, 2, 1, 1)),
    "no padding": ConvSpec(n=1, c=8, h=22, w=6, k=16, padding=0),
    "whole tiles": ConvSpec(n=1, c=16, h=14, w=14, k=32),
    "one of everything": ConvSpec(n=1, c=1, h=1, w=1, k=1),
    "one channel": ConvSpec(n=1, c=1, h=24, w=24, k=1),
    "smaller than a tile": ConvSpec(n=3, c=4, h=2, w=3, k=4),
    "prime map": ConvSpec(n=1, c=16, h=17, w=17, k=16),
    "batch of small maps": ConvSpec(n=7, c=6, h=3, w=3, k=10),
}
EPILOGUES = [Epilogue(), FULL, Epilogue(bias=True, relu6=True), Epilogue(residual=True)]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", SPECS)
def test_every_shape_in_every_layout(name: str, layout: str) -> None:
    spec = change(SPECS[name], layout=layout)
    epilogue = EPILOGUES[(len(name) + LAYOUTS.index(layout)) % 4]
    check(KERNEL, spec, epilogue, KERNEL.configs(spec, host_cpu())[0], host_cpu())


@pytest.mark.parametrize("name", ["ragged", "whole tiles"])
def test_every_config(name: str) -> None:
    for config in KERNEL.configs(SPECS[name], host_cpu()):
        check(KERNEL, SPECS[name], FULL, config, host_cpu())


@pytest.mark.parametrize("cpu", ["host", "baseline"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_every_dtype_on_every_cpu(dtype: str, cpu: str) -> None:
    for name in ("ragged", "whole tiles"):
        spec = change(SPECS[name], dtype=dtype)
        check(KERNEL, spec, FULL, KERNEL.configs(spec, hardware(cpu))[0], hardware(cpu))


@pytest.mark.parametrize("cores", [1, 3, 64])
def test_other_numbers_of_cores(cores: int) -> None:
    cpu = Cpu(host_cpu().cpu, host_cpu().vector_bits, cores)
    check(KERNEL, SPECS["ragged"], FULL, KERNEL.configs(SPECS["ragged"], cpu)[0], cpu)


@pytest.mark.parametrize("channels", [64, 512])
def test_as_accurate_as_float32_allows(channels: int) -> None:
    """F(2x2) adds and halves only, so its error is that of a float32 sum over the channels."""
    spec = ConvSpec(n=1, c=channels, h=14, w=14, k=32)
    config = KERNEL.configs(spec, host_cpu())[0]
    assert error_of(KERNEL, spec, Epilogue(), config, host_cpu()) < 1e-6


def test_large_values_do_not_overflow_float16() -> None:
    """Storage is float16; patches of up to 4 max|x| are sums in float32."""
    import tvm

    spec = ConvSpec(n=1, c=2, h=6, w=6, k=1, dtype="float16")
    config = KERNEL.configs(spec, host_cpu())[0]
    x = np.full(spec.input_shape, 6e4, "float16")
    w = np.zeros(spec.weight_shape, "float16")
    w[:, 0, 1, 1] = 1
    out = tvm.runtime.tensor(np.zeros(spec.output_shape, "float16"))
    run = compile_config(KERNEL, spec, Epilogue(), config, host_cpu())["main"]
    arrays = (x, KERNEL.pack_weights(w, spec, config))
    run(*(tvm.runtime.tensor(a) for a in arrays), out)
    np.testing.assert_array_equal(out.numpy(), x[:, :1])


@pytest.mark.parametrize("name", ["ragged", "whole tiles"])
def test_weight_transform_equals_pack_weights(name: str) -> None:
    spec = SPECS[name]
    got, want = packed_on_the_device(KERNEL, spec, KERNEL.configs(spec, host_cpu())[0])
    np.testing.assert_allclose(got, want, 1e-5, 1e-6)


def test_balances_blocks_over_the_cores() -> None:
    """28x28 has 196 tiles: 8 blocks of 25 for 2 cores, not 7 of 28."""
    spec = ConvSpec(n=1, c=256, h=28, w=28, k=256)
    config = KERNEL.configs(spec, Cpu("znver4", 512, 2))[0]
    assert (config.p_tile, config.fused) == (25, True)
    assert not KERNEL.configs(spec, Cpu("znver4", 512, 64))[0].fused


def test_refusals_say_why() -> None:
    cpu, spec = host_cpu(), SPECS["ragged"]
    assert "llvm" in (KERNEL.supports(spec, Epilogue(), gpu_for("sm_90")) or "")
    assert "stride" in (KERNEL.supports(change(spec, stride=2), Epilogue(), cpu) or "")
    assert "spill" in (KERNEL.illegal(WinogradCpuConfig(8, 4, 28, True), spec, cpu) or "")
    assert KERNEL.not_worth(ConvSpec(n=1, c=3, h=224, w=224, k=64), cpu)
    assert KERNEL.not_worth(ConvSpec(n=1, c=64, h=56, w=56, k=64), cpu) is None


def change(spec: ConvSpec, **fields: object) -> ConvSpec:
    return ConvSpec(**{**vars(spec), **fields})
