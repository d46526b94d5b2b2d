"""The variants that ablation.py compares: the fused Winograd kernels with one knob changed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from tvm_winograd import ConvSpec, Epilogue
from tvm_winograd.gpu import Gpu, gpu_for
from tvm_winograd.schedules.base.kernel import config_dict
from tvm_winograd.schedules.winograd_fused.kernel import F4, NAMED, FusedTile, default

NONE, FULL = Epilogue(), Epilogue(bias=True, residual=True, relu=True)


@dataclass(frozen=True)
class Variant:
    """The default config but for `change` (or `config` as it is)."""

    name: str
    change: dict[str, Any] = field(default_factory=dict)
    config: FusedTile | None = None
    layout: str = "NCHW"
    epilogue: Epilogue = NONE
    separate: bool = False  # the epilogue in a kernel of its own

    def config_for(self, spec: ConvSpec, gpu: Gpu) -> FusedTile:
        if self.config is not None:
            return self.config
        base = default(spec, gpu)
        if gpu.has_async_copy:  # so that all layers show the same
            base = replace(base, weights="async", held=False, near=False)
        return replace(base, **self.change)


_REGISTERS = {"weights": "registers"}
VARIANTS = (
    Variant("default"),
    # Getting operands to shared memory
    Variant("U through registers, no cp.async", _REGISTERS),
    Variant("U through registers, loads behind the arithmetic", _REGISTERS | {"prefetch": "after"}),
    Variant("no loads in flight", _REGISTERS | {"prefetch": "off"}),
    Variant("U copied by 4 bytes", {"copy": 1}),
    Variant("patches held before the arithmetic", {"held": True}),
    Variant("copies of U near each other", {"near": True}),
    Variant("both", {"held": True, "near": True}),
    Variant("V double-buffered too", {"buffers": 2}),
    Variant("U through registers, U and V double-buffered", _REGISTERS | {"buffers": 2}),
    # From there to the arithmetic
    Variant("shared loads of 8 bytes", {"fragment": 2, "stores": 2}),
    Variant("shared loads of 4 bytes", {"fragment": 1, "stores": 1}),
    Variant("lanes in order of loops: e, k, k, p, p", {"lanes": "ekkpp"}),
    Variant("lanes e, p, p, k, k", {"lanes": "eppkk"}),
    Variant("8x8 of two points a thread", {"tk": 8, "points": 2, "lanes": "pkkkp"}),
    Variant("operands double-buffered in registers", {"fragments": 2}),
    Variant("4 of 8 channels unrolled", {"unroll": 4}),
    Variant("1 of 8 channels unrolled", {"unroll": 1}),
    # Output transform
    Variant("output in 1 round", {"rounds": 1}),
    Variant("output in 2 rounds", {"rounds": 2}),
    Variant("output in 8 rounds", {"rounds": 8}),
    Variant("M stored by 4 bytes", {"stores": 1}),
    Variant("M stored by 8 bytes", {"stores": 2}),
    Variant("M by 8 bytes, two tiles a thread (STS64)", {"stores": 2, "tiles": 2}),
    Variant("M by 8 bytes both ways (LDS64)", {"stores": 2, "tiles": 2, "loads": 2}),
    Variant("M by 16 bytes in, 8 out", {"tiles": 2, "loads": 2}),
    Variant("M rotated instead of padded", {"compact": True}),
    Variant("M double-buffered", {"m_buffers": 2}),
    # Size of the block
    Variant("32x32 tile, 64 accumulators", {"bk": 32, "tk": 8, "rounds": 2}),
    Variant("the same, 2 blocks an SM", {"bk": 32, "tk": 8, "rounds": 2, "min_blocks": 2}),
    # openCNN
    Variant("default, CHWN", layout="CHWN"),
    *(Variant(name, config=NAMED[name], layout="CHWN") for name in NAMED if name != "opencnn"),
    # Epilogue
    Variant("bias, residual, ReLU fused", epilogue=FULL),
    Variant("bias, residual, ReLU in a second kernel", epilogue=FULL, separate=True),
)


def variants_of_f4(specs: list[ConvSpec], arch: str) -> list[Variant]:
    """Lists every config worth trying for one of `specs`; the first layer's default is the base."""
    configs = list(dict.fromkeys(c for s in specs for c in F4.configs(s, gpu_for(arch))))
    plain = config_dict(configs[0])
    changes = [{k: v for k, v in config_dict(c).items() if v != plain[k]} for c in configs]
    names = [", ".join(f"{k}={v}" for k, v in change.items()) or "default" for change in changes]
    return [Variant(name, config=c) for name, c in zip(names, configs, strict=True)]
