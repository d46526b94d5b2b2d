"""What a GPU allows a config: cp.async, shared memory and registers, checked here for all kernels.

A family's `needs(config, spec)` says what its kernels take; `exceeds` holds that against a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm_winograd.gpu import Gpu

# Products in one running sum of float32. Zero-mean data: 2,560 err by 9.0e-7 from float64, 4,608
# (512 channels, 3x3) by 1.2e-6.
LONGEST_SUM = 2560


@dataclass(frozen=True)
class Needs:
    """What the kernels of a config take of a GPU, those counted that take most."""

    shared_bytes: int = 0  # of a block
    threads: int = 0  # that an SM must hold at once: of a block, or of `min_blocks` of them
    registers: int = 0  # of a thread, about; 0: not estimated
    async_copy: str | None = None  # the knob that asks for cp.async, as a user writes it


def exceeds(needs: Needs, gpu: Gpu) -> str | None:
    """None, or what `needs` asks for and `gpu` does not have."""
    if needs.async_copy and not gpu.has_async_copy:
        return f"{needs.async_copy} needs cp.async (sm_80 or newer), got {gpu.arch}"
    if needs.shared_bytes > gpu.shared_per_block:
        return f"{needs.shared_bytes} bytes of shared memory; {gpu.arch} has {gpu.shared_per_block}"
    if needs.registers == 0:
        return None
    available = min(gpu.max_registers, gpu.registers_per_sm // needs.threads)
    if needs.registers > available:
        return (
            f"about {needs.registers} registers a thread; "
            f"{needs.threads} threads may have {available} each"
        )
    return None
