"""Hand-written schedules, one file per kernel family; KERNELS lists them, preferred first."""

from . import direct_cpu, direct_dlight, winograd_cpu, winograd_f4, winograd_fused

KERNELS = (
    winograd_fused.KERNEL,
    winograd_f4.KERNEL,
    direct_dlight.KERNEL,
    winograd_cpu.KERNEL,
    direct_cpu.KERNEL,
)
