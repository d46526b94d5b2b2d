"""Direct convolution on CUDA, scheduled by TVM's own dlight rules: the fallback for every shape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tvm_winograd.gpu import Hardware
from tvm_winograd.shapes import ConvSpec, Epilogue
from tvm_winograd.te import direct

from ..base.kernel import Kernel


@dataclass(frozen=True)
class Dlight:
    """dlight has no knobs."""


def tiling(spec: ConvSpec) -> direct.Tiling:
    """No tiles. A padded input is a block of its own: dlight's Matmul copies operands without the
    guards that a fused padding would put around their reads (illegal addresses, H200)."""
    return direct.Tiling(staged=max(spec.padding) > 0)


def supports(spec: ConvSpec, epilogue: Epilogue, hardware: Hardware) -> str | None:
    return direct.applies(spec)


def illegal(config: Dlight, spec: ConvSpec, hardware: Hardware) -> str | None:
    return None


def configs(spec: ConvSpec, hardware: Hardware) -> list[Dlight]:
    return [Dlight()]


def prim_func(spec: ConvSpec, epilogue: Epilogue, config: Dlight) -> Any:
    return direct.prim_func(spec, epilogue, tiling(spec))


def pack_weights(w: np.ndarray, spec: ConvSpec, config: Dlight) -> np.ndarray:
    return direct.pack_weights(w, spec, tiling(spec))


def weight_func(spec: ConvSpec, config: Dlight) -> Any:
    return direct.weight_func(spec, tiling(spec))


KERNEL = Kernel(
    name="direct-dlight",
    algorithm="direct",
    target="cuda",
    config=Dlight,
    supports=supports,
    illegal=illegal,
    configs=configs,
    prim_func=prim_func,
    schedule=None,
    pack_weights=pack_weights,
    weight_func=weight_func,
)
