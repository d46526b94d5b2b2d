"""What each kernel can compute, asked of the predicate that the selector asks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tvm_winograd.schedules import KERNELS
from tvm_winograd.schedules.base.kernel import Kernel

from .. import precision
from ..gpu import Hardware
from ..shapes import ConvSpec, Epilogue

_PLAIN = ConvSpec(n=8, c=64, h=28, w=28, k=64)
# A property -> a convolution that has it and is like `_PLAIN` else.
PROPERTIES = {
    "3x3": _PLAIN,
    "1x1": replace(_PLAIN, r=1, s=1, padding=(0, 0, 0, 0)),
    "7x7": replace(_PLAIN, r=7, s=7, padding=(3, 3, 3, 3)),
    "stride 2": replace(_PLAIN, stride=2),
    "dilation 2": replace(_PLAIN, dilation=2, padding=(2, 2, 2, 2)),
    "groups": replace(_PLAIN, groups=2),
    "depthwise": replace(_PLAIN, groups=64),
    "3 channels": replace(_PLAIN, c=3),
    "NHWC": replace(_PLAIN, layout="NHWC"),
    "CHWN": replace(_PLAIN, layout="CHWN"),
    "float16": replace(_PLAIN, dtype="float16"),
    "int8": replace(_PLAIN, dtype="int8"),
}
_LAYOUTS = ("NCHW", "NHWC", "CHWN")


@dataclass(frozen=True)
class Support:
    """One kernel and one convolution on some hardware."""

    kernel: Kernel[Any]
    refused: str | None  # None: it can compute it
    config: Any = None  # its default
    seconds: float | None = None  # estimated, of that config

    def as_dict(self) -> dict[str, Any]:
        return {
            "kernel": self.kernel.name,
            "algorithm": self.kernel.algorithm,
            "refused": self.refused,
            "estimated_us": None if self.seconds is None else self.seconds * 1e6,
        }


def kernels(hardware: Hardware) -> list[Kernel[Any]]:
    """Those for one kind of hardware, preferred first."""
    return [k for k in KERNELS if k.target == hardware.kind]


def refusal(
    kernel: Kernel[Any], spec: ConvSpec, epilogue: Epilogue, hardware: Hardware
) -> str | None:
    """None, or why `kernel` cannot compute the convolution there."""
    missing = precision.missing(kernel.math_of(spec), hardware.arch)
    return epilogue.unfit(spec) or kernel.supports(spec, epilogue, hardware) or missing


def properties(kernel: Kernel[Any], hardware: Hardware) -> dict[str, bool]:
    """Which of PROPERTIES a kernel takes, in whatever layout if the property is none."""
    found = {}
    for name, spec in PROPERTIES.items():
        layouts = [spec.layout] if name in _LAYOUTS else _LAYOUTS
        found[name] = any(
            refusal(kernel, replace(spec, layout=layout), Epilogue(), hardware) is None
            for layout in layouts
        )
    return found


def of_convolution(spec: ConvSpec, epilogue: Epilogue, hardware: Hardware) -> list[Support]:
    """Every kernel for that hardware: why it cannot compute `spec`, or how long it may take."""
    found = []
    for kernel in kernels(hardware):
        if (why := refusal(kernel, spec, epilogue, hardware)) is not None:
            found.append(Support(kernel, why))
            continue
        config = kernel.configs(spec, hardware)[0]
        seconds = kernel.seconds(config, spec, hardware) if kernel.seconds else None
        found.append(Support(kernel, None, config, seconds))
    return found
