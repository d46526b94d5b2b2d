"""The config of direct convolution by dlight, which has no knobs, and its tiling."""

from __future__ import annotations

from dataclasses import dataclass

from tvm_winograd.shapes import ConvSpec
from tvm_winograd.te import direct


@dataclass(frozen=True)
class Dlight:
    """dlight has no knobs."""


def tiling(spec: ConvSpec) -> direct.Tiling:
    """No tiles. A padded input is a block of its own: dlight's Matmul copies operands without the
    guards that a fused padding would put around their reads (illegal addresses, H200)."""
    return direct.Tiling(staged=max(spec.padding) > 0)
