"""Hand-written schedules, one file per kernel family; KERNELS lists them, preferred first."""

from .depthwise import kernel as depthwise
from .direct import kernel as direct_dlight
from .gemm import kernel as implicit_gemm
from .im2win import kernel as im2win
from .on_cpu import direct as direct_cpu
from .on_cpu import im2win as im2win_cpu
from .on_cpu import winograd as winograd_cpu
from .winograd_fused import kernel as winograd_fused
from .winograd_staged import kernel as winograd_f4

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
