"""How long a tiled matrix product takes on a GPU: an estimate in clocks of an SM.

What time is made of: instructions that the four schedulers of an SM issue, one a clock and warp;
the latency of a step, where few warps hide it; bytes from L2; the filling and draining of a round
of blocks. Constants are of an H200 (driver 580, 2026-11-30); benchmarks/fit_estimates.py fits those
of the kernels' estimates to measurements.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm_winograd.gpu import Gpu
from tvm_winograd.shapes import ConvSpec
from tvm_winograd.te.common import ceil_div

SCHEDULERS = 4  # of an SM
L2_BYTES = 26  # that an SM gets from L2 in a clock
# A kernel's launch, first loads and last stores, in a CUDA graph: 1.7 us.
LAUNCH_CLOCKS = 3500
_LOOP = 30  # instructions of a step's loop, barriers and addresses
_STEP_LATENCY = (
    120  # clocks of a step beside its instructions: two barriers, the first shared loads
)
# Share of a block's time in which it waits and only other blocks of its SM work.
_EXPOSED = 0.25
_LOAD_LATENCY = 900  # clocks, of device memory or L2
_FILL = 2500  # clocks, of a round of blocks: the first loads, the stores
_OTHER_REGISTERS = 56  # of a thread, beside its accumulators
# Bytes a second of a kernel that copies or transforms, over those of the GPU's device memory.
_STREAM = 0.81  # from device memory
_L2_STREAM = 1.35  # from L2
_L2_SHARE = 0.65  # of L2: data of at most this size are found there by the next kernel


@dataclass(frozen=True)
class Product:
    """A main loop, as far as time depends on it."""

    blocks: int
    steps: int  # of a block
    threads: int  # of a block
    tk: int  # filters a thread
    tp: int  # pixels or tiles a thread
    bc: int  # products a step
    copies: float  # instructions of a block in a step that are no arithmetic
    step_bytes: int  # a block reads from L2 in a step
    shared_bytes: int  # of a block
    buffers: int  # of a step in shared memory


def clocks(product: Product, gpu: Gpu) -> float:
    """Clocks that the whole kernel takes."""
    p, accumulators = product, product.tk * product.tp
    each = ceil_div(p.blocks, gpu.sms)  # blocks an SM
    resident, rounds = occupancy(p, gpu)
    # A 16-byte shared load occupies the SM's one port for two clocks: half a clock a scheduler.
    fragments = (p.tk + p.tp) // 4
    arithmetic = p.bc * max(accumulators + fragments, 2 * fragments * SCHEDULERS)
    issue = arithmetic + p.copies / p.threads + _LOOP
    latency = rounds * max(issue + _STEP_LATENCY, _LOAD_LATENCY / max(1, p.buffers - 1))
    warps = ceil_div(each * ceil_div(p.threads, gpu.warp), SCHEDULERS)
    busy = max(warps * issue, each * p.step_bytes / L2_BYTES)
    return p.steps * max(busy, latency) * (1 + _EXPOSED / resident) + rounds * _FILL


def least_seconds(spec: ConvSpec, gpu: Gpu) -> float:
    """Time of a direct convolution's products, if every scheduler issued nothing else."""
    return spec.flops / 2 / gpu.warp / SCHEDULERS / gpu.sms / gpu.hertz


def occupancy(product: Product, gpu: Gpu) -> tuple[int, int]:
    """(blocks that an SM holds at once, rounds of them)."""
    each = ceil_div(product.blocks, gpu.sms)
    registers = product.threads * (product.tk * product.tp + _OTHER_REGISTERS)
    resident = min(gpu.registers_per_sm // registers, gpu.shared_per_sm // product.shared_bytes)
    resident = max(1, min(resident, each))
    return resident, ceil_div(each, resident)


def memory_seconds(bytes_: float, gpu: Gpu) -> float:
    """Time of bytes that device memory reads or writes, and L2 does not keep."""
    return bytes_ / (gpu.gb_per_s * 1e9 * _STREAM)


def stream_seconds(bytes_: int, gpu: Gpu, slower: float = 1.0) -> float:
    """Time of a kernel that reads and writes `bytes_` and computes little.

    Args:
        slower: than one that only copies.
    """
    near = bytes_ <= _L2_SHARE * gpu.l2_bytes
    rate = gpu.gb_per_s * 1e9 * (_L2_STREAM if near else _STREAM)
    return slower * bytes_ / rate + LAUNCH_CLOCKS / gpu.hertz
