"""What the fused F(4x4) costs: estimated seconds."""

from __future__ import annotations

from dataclasses import dataclass

from tvm_winograd.gpu import Gpu
from tvm_winograd.shapes import ConvSpec
from tvm_winograd.te import winograd
from tvm_winograd.te.common import ceil_div

from ..base import product_time
from .config import FusedF4
from .cost import STEPS


@dataclass(frozen=True)
class Clocks:
    """What time is made of, in clocks of an SM, which holds one block, unless said.

    Fitted to measurements by benchmarks/fit_estimates.py; the estimates are then within 14 %
    (standard deviation).
    """

    products: float = 49  # multiply-adds of Winograd's domain, a clock
    patch: float = 1.4  # of an input patch
    # The same, where fewer than 4 tiles share a row: the 32 lanes of a load touch 16 rows.
    far_patch: float = 10
    store: float = 6.7  # of an output tile
    odd_store: float = 14.4  # the same, where rows are no multiple of 16 bytes


CLOCKS = Clocks()


def cost(config: FusedF4, spec: ConvSpec, gpu: Gpu) -> float:
    """Estimated time in clocks of an SM."""
    z = winograd.sizes(spec, config.tiling)
    patch = CLOCKS.patch if z.cols >= 4 else CLOCKS.far_patch
    step = config.all_points * config.bk * config.bp * config.bc / CLOCKS.products
    step += config.bp * config.bc * patch
    store = spec.k / z.kb * config.bp * (CLOCKS.odd_store if spec.ow % 4 else CLOCKS.store)
    block = z.c_pad // config.split_c // config.bc * step + store
    time = ceil_div(z.kb * z.pb * config.split_c, gpu.sms) * block
    if config.split_c == 1:
        return time
    moved = 8 * config.split_c * z.kb * z.bk * z.pb * z.bp * config.m**2
    return time + product_time.LAUNCH_CLOCKS + moved / gpu.sms / product_time.L2_BYTES


def seconds(config: FusedF4, spec: ConvSpec, gpu: Gpu) -> float:
    """Estimated time; NHWC's is taken to be as much longer as F(2x2)'s."""
    factor = STEPS.nhwc if spec.layout == "NHWC" else 1.0
    return (factor * cost(config, spec, gpu) + product_time.LAUNCH_CLOCKS) / gpu.hertz
