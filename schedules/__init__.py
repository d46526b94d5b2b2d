"""Hand-written schedules, one file per kernel family; KERNELS lists them, preferred first."""

from . import (
    depthwise,
    direct_cpu,
    direct_dlight,
    im2win,
    im2win_cpu,
    implicit_gemm,
    winograd_cpu,
    winograd_f4,
    winograd_fused,
)

KERNELS = (
    winograd_fused.KERNEL,
    winograd_f4.KERNEL,
    winograd_fused.F4,
    implicit_gemm.KERNEL,
    implicit_gemm.IM2COL,
    depthwise.KERNEL,
    direct_dlight.KERNEL,
    winograd_cpu.KERNEL,
    direct_cpu.KERNEL,
    im2win.KERNEL,
    im2win_cpu.KERNEL,
)
