"""Convolution on tensor cores with the accuracy of float32 (fp16x3): implicit GEMM by wgmma.

Each float32 operand is split into two fp16, three products are made of them, and partial sums leave
the tensor cores every 64 products. wgmma.cuh is the kernel; pack.py says how weights lie.

Constraints: sm_90 (wgmma runs on no other architecture); NHWC and float32; groups of 32 channels
and filters or more. Channels that are no multiple of 4 are padded by a kernel of their own.
"""

from .kernel import KERNEL, Peaks

__all__ = ["KERNEL", "Peaks"]
