"""No kernel's indices, copies or workspaces outgrow 32 bits, at the largest sizes it accepts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from convs import FULL
from cuda_kernels import SM90
from index_widths import misfits

from tvm_winograd import ConvSpec
from tvm_winograd.gpu import Hardware, gpu_for, host_cpu
from tvm_winograd.schedules import KERNELS
from tvm_winograd.schedules.base.kernel import Kernel
from tvm_winograd.schedules.depthwise import kernel as depthwise
from tvm_winograd.schedules.direct import kernel as direct_dlight
from tvm_winograd.schedules.gemm import kernel as implicit_gemm
from tvm_winograd.schedules.gemm.kernel import Im2col, Implicit
from tvm_winograd.schedules.im2win import kernel as im2win
from tvm_winograd.schedules.im2win.kernel import Im2win
from tvm_winograd.schedules.winograd_fused import kernel as winograd_fused
from tvm_winograd.schedules.winograd_fused.kernel import Fused, FusedF4
from tvm_winograd.schedules.winograd_staged import kernel as winograd_f4
from tvm_winograd.schedules.winograd_staged.kernel import Staged

SMALL = ConvSpec(n=1, c=64, h=64, w=64, k=64)
DEEP = replace(SMALL, c=4096)
RAGGED = ConvSpec(n=1, c=3, h=65, w=63, k=70)
NHWC, CHWN = (replace(SMALL, layout=layout) for layout in ("NHWC", "CHWN"))
POINTWISE = replace(SMALL, r=1, s=1, padding=(0,) * 4)
# im2col's matrix has 2.4e9 bytes
DILATED = ConvSpec(n=8, c=512, h=128, w=128, k=16, padding=(2,) * 4, dilation=2)
MARKED = {"held": True, "near": True}
REGISTERS = {"inputs": "registers", "buffers": 2}
# (kernel, config, convolution, which of its sizes grows)
CASES: list[tuple[Kernel, Any, ConvSpec, str]] = [
    (winograd_fused.KERNEL, Fused(), SMALL, "n"),
    (winograd_fused.KERNEL, Fused(), NHWC, "n"),
    (winograd_fused.KERNEL, Fused(), CHWN, "n"),
    (winograd_fused.KERNEL, Fused(), RAGGED, "h"),
    (winograd_fused.KERNEL, Fused(), DEEP, "k"),
    (winograd_fused.KERNEL, winograd_fused.portable(SMALL), DEEP, "k"),
    (winograd_fused.KERNEL, Fused(split_c=4), SMALL, "n"),
    (winograd_fused.KERNEL, Fused(**MARKED, stages=3), DEEP, "k"),
    (winograd_fused.KERNEL, Fused(**MARKED), SMALL, "n"),
    (winograd_fused.KERNEL, Fused(overlap=True), RAGGED, "h"),
    (winograd_fused.KERNEL, Fused(overlap=True), replace(CHWN, h=3), "n"),
    (winograd_fused.F4, FusedF4(), DEEP, "k"),
    (winograd_fused.F4, FusedF4(**MARKED), RAGGED, "h"),
    (winograd_fused.F4, FusedF4(split_c=4), SMALL, "n"),
    (winograd_f4.KERNEL, Staged(), SMALL, "n"),
    (winograd_f4.KERNEL, Staged(), DEEP, "k"),
    (winograd_f4.KERNEL, Staged(chunks=2), SMALL, "n"),
    (winograd_f4.KERNEL, winograd_f4.portable(RAGGED), RAGGED, "n"),
    (implicit_gemm.KERNEL, Implicit(store="pixels"), SMALL, "n"),
    (implicit_gemm.KERNEL, Implicit(parts=2), NHWC, "n"),
    (implicit_gemm.KERNEL, Implicit(inputs="async16", store="pixels"), POINTWISE, "n"),
    (implicit_gemm.KERNEL, Implicit(**REGISTERS), SMALL, "k"),
    (implicit_gemm.KERNEL, Implicit(store="words", **REGISTERS), RAGGED, "h"),
    (implicit_gemm.IM2COL, Im2col(), SMALL, "n"),
    (implicit_gemm.IM2COL, Im2col(weights="registers", buffers=1), SMALL, "n"),
    (im2win.KERNEL, Im2win(), SMALL, "n"),
    (im2win.KERNEL, Im2win(bc=1, flat=12), SMALL, "n"),
    (im2win.KERNEL, Im2win(parts=2), DEEP, "k"),
    (im2win.KERNEL, im2win.portable(RAGGED), RAGGED, "n"),
    (depthwise.KERNEL, depthwise.Depthwise(), replace(SMALL, groups=64), "n"),
    (direct_dlight.KERNEL, direct_dlight.Dlight(), SMALL, "n"),
]


def largest(kernel: Kernel, config: Any, spec: ConvSpec, size: str, hw: Hardware) -> ConvSpec:
    """The last convolution that `config` accepts while a size of `spec` grows."""
    least, most = 1, 2**32
    while most - least > 1:
        middle = (least + most) // 2
        grown = replace(spec, **{size: middle})
        refused = kernel.supports(grown, FULL, hw) or kernel.illegal(config, grown, hw)
        least, most = (least, middle) if refused else (middle, most)
    return replace(spec, **{size: least})


def named(value: Any) -> str:
    return value.name if isinstance(value, Kernel) else str(value) if isinstance(value, str) else ""


@pytest.mark.parametrize(("kernel", "config", "spec", "size"), CASES, ids=named)
def test_what_is_accepted_fits(kernel: Kernel, config: Any, spec: ConvSpec, size: str) -> None:
    spec = largest(kernel, config, spec, size, SM90)
    assert 4 * spec.c * spec.k * spec.n * spec.h * spec.w > 2**31  # a limit was met
    assert misfits(kernel, spec, FULL, config, SM90) == []


def test_a_copy_behind_32_bits_is_found_and_refused() -> None:
    """Illegal addresses on an H200: cp.async's offset in bytes was negative."""
    config = Im2col(bk=32, tk=4, lanes="ppkkp", parts=2)
    assert "cp.async" in (implicit_gemm.illegal(config, DILATED, SM90) or "")
    found = misfits(implicit_gemm.IM2COL, DILATED, FULL, config, SM90)
    assert found and all(line.startswith("4 * ") for line in found)
    default = implicit_gemm.IM2COL.configs(DILATED, SM90)[0]
    assert misfits(implicit_gemm.IM2COL, DILATED, FULL, default, SM90) == []


LARGE = [
    DILATED,
    ConvSpec(n=128, c=64, h=224, w=224, k=64),
    ConvSpec(n=600, c=64, h=224, w=224, k=64),
    ConvSpec(n=1, c=4096, h=28, w=28, k=4096),
    ConvSpec(n=1, c=8192, h=7, w=7, k=8192),
    ConvSpec(n=1, c=64, h=4000, w=4000, k=64, layout="NHWC"),
    ConvSpec(n=1024, c=256, h=56, w=56, k=64, r=1, s=1, padding=0),
    ConvSpec(n=1024, c=256, h=80, w=80, k=256, groups=256),
]


@pytest.mark.parametrize("spec", LARGE, ids=ConvSpec.key)
def test_a_kernel_that_applies_has_a_default_that_fits(spec: ConvSpec) -> None:
    old, cpu = gpu_for("sm_75"), host_cpu()
    for hw in (SM90, old, cpu):
        for kernel in (k for k in KERNELS if k.target == hw.kind):
            if kernel.supports(spec, FULL, hw) is None:
                default = kernel.configs(spec, hw)[0]
                assert kernel.illegal(default, spec, hw) is None
                assert hw is old or misfits(kernel, spec, FULL, default, hw) == []
