"""Hand-written schedules, a folder per kernel family; KERNELS lists them, preferred first."""

from typing import Any

from . import depthwise, direct, gemm, im2win, tensor_core, winograd_fused, winograd_staged
from .base.kernel import Kernel
from .on_cpu import direct as direct_cpu
from .on_cpu import im2win as im2win_cpu
from .on_cpu import winograd as winograd_cpu

KERNELS: tuple[Kernel[Any], ...] = (
    winograd_fused.KERNEL,
    winograd_staged.KERNEL,
    winograd_fused.F4,
    tensor_core.KERNEL,
    gemm.KERNEL,
    gemm.IM2COL,
    depthwise.KERNEL,
    direct.KERNEL,
    winograd_cpu.KERNEL,
    direct_cpu.KERNEL,
    im2win.KERNEL,
    im2win_cpu.KERNEL,
)
