"""Every activation of the table in the store of every kernel, on a small ragged convolution.

CPU kernels run; CUDA schedules run serially, and the text of some in the emulator.
"""

from __future__ import annotations

from dataclasses import replace

import cpu_kernels
import cuda_kernels
import pytest
from convs import random_arrays
from cuda_emulator import emulate
from cuda_kernels import SM90

from tvm_winograd import ConvSpec, Epilogue, conv2d
from tvm_winograd.activation import ACTIVATIONS
from tvm_winograd.choose.select import choose
from tvm_winograd.gpu import host_cpu
from tvm_winograd.schedules import KERNELS
from tvm_winograd.truth.tolerances import tolerance

RAGGED = ConvSpec(n=2, c=5, h=7, w=9, k=6)
BY_NAME = {
    "depthwise-cuda": ConvSpec(n=2, c=6, h=7, w=9, k=6, groups=6),
}
TEXTS = [
    f"{a.name}({','.join(['0.25'] * len(a.parameters))})" if a.parameters else a.name
    for a in ACTIVATIONS.values()
]
# Loops that dlight schedules are no blocks of ours: its threads cannot be made serial.
# Tensor-core kernels have an emulator of their own: test_tensor_core.py.
SERIAL = [k for k in KERNELS if (k.target == "llvm" or k.schedule) and k.math == "fma"]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("kernel", SERIAL, ids=lambda kernel: f"{kernel.target}-{kernel.name}")
def test_every_kernel(kernel, text):
    spec, epilogue = BY_NAME.get(kernel.name, RAGGED), Epilogue(True, True, activation=text)
    hardware = host_cpu() if kernel.target == "llvm" else SM90
    assert kernel.supports(spec, epilogue, hardware) is None
    config = kernel.configs(spec, hardware)[0]
    if kernel.target == "llvm":
        cpu_kernels.check(kernel, spec, epilogue, config, hardware)
    else:
        cuda_kernels.check(kernel, spec, epilogue, config)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_storage_of_16_bits(dtype):
    """It is computed in float32 and rounded once."""
    spec, epilogue = replace(RAGGED, dtype=dtype), Epilogue(True, True, activation="silu")
    kernel = next(k for k in KERNELS if k.name == "direct-cpu")
    cpu_kernels.check(kernel, spec, epilogue, kernel.configs(spec, host_cpu())[0], host_cpu())


def test_sums_in_parts():
    """The activation stands behind the sum of the parts, in the second kernel."""
    spec = ConvSpec(n=1, c=96, h=7, w=9, k=6)
    for name in ("winograd-f2-fused", "implicit-gemm"):
        kernel = next(k for k in KERNELS if k.name == name)
        split = [c for c in kernel.configs(spec, SM90) if parts(c) > 1]
        cuda_kernels.check(kernel, spec, Epilogue(True, True, activation="silu"), split[0])


def parts(config):
    return getattr(config, "parts", None) or config.split_c


@pytest.mark.parametrize("text", ["silu", "hard_swish", "prelu(0.25)", "gelu"])
@pytest.mark.parametrize("name", ["implicit-gemm", "im2win-cuda"])
def test_cuda_text(name, text):
    """As NVRTC takes it, run on the CPU: expf, erff, several threads' vectors of the store."""
    kernel = next(k for k in KERNELS if (k.name, k.target) == (name, "cuda"))
    config = kernel.configs(RAGGED, SM90)[0]
    epilogue = Epilogue(True, True, activation=text)
    error = emulate(kernel, RAGGED, epilogue, config)
    assert error <= tolerance(RAGGED, kernel.algorithm)
    source = cuda_kernels.compiled(kernel, RAGGED, config, "sm_90", epilogue).source
    assert ("expf(" in source, "erff(" in source) == (text == "silu", text == "gelu")


@pytest.mark.parametrize("text", ["silu", "leaky_relu(0.1)"])
def test_what_dlight_schedules(text):
    """A strided convolution in groups: TVM's rules take the store along."""
    spec = ConvSpec(1, 1024, 9, 9, 4, stride=2, groups=2)
    assert choose(spec, Epilogue(activation=text), SM90).source == "fallback"
    compiled = conv2d(spec, "cuda", "sm_90", bias=True, activation=text)
    assert len(compiled.resources()) <= 3
    assert ("expf(" in compiled.source()) == (text == "silu")


def test_the_arrays_reach_every_bend():
    """Outputs beyond 6 and below -6, or a clip would not show."""
    arrays = random_arrays(RAGGED, Epilogue(activation="hard_swish"))
    y = conv2d(RAGGED)(*arrays)
    assert y.min() < -6 and y.max() > 6
