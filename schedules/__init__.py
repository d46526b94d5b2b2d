"""Hand-written schedules, one file per kernel family; KERNELS lists them, preferred first."""

from . import direct_cpu, direct_dlight, winograd_fused

KERNELS = (
    winograd_fused.KERNEL,
    direct_dlight.KERNEL,
    direct_cpu.KERNEL,
)
