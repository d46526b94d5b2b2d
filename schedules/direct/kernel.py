"""Direct convolution on CUDA, scheduled by TVM's own dlight rules: the fallback for every shape."""

from __future__ import annotations

from tvm_winograd.te import direct

from ..base.kernel import Kernel
from .config import Dlight, tiling

__all__ = ["KERNEL", "Dlight"]

KERNEL = Kernel(
    name="direct-dlight",
    algorithm="direct",
    target="cuda",
    config=Dlight,
    own_supports=lambda spec, epilogue, gpu: direct.applies(spec),
    own_illegal=lambda config, spec, gpu: None,
    configs=lambda spec, gpu: [Dlight()],
    prim_func=lambda spec, epilogue, config: direct.prim_func(spec, epilogue, tiling(spec)),
    schedule=None,
    pack_weights=lambda w, spec, config: direct.pack_weights(w, spec, tiling(spec)),
    weight_func=lambda spec, config: direct.weight_func(spec, tiling(spec)),
)
