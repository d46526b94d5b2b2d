"""Direct convolution on a CPU: a register tile of (h_tile x w_tile) pixels by k_tile filters.

The micro-kernel broadcasts one input value per pixel and multiplies it with a vector of packed
weights; its accumulators stay in registers over the whole (r, s, c) reduction. c is innermost on
purpose: with s innermost LLVM unrolls it, shares input values between filter taps and spills the
accumulators (3.2 ms instead of 1.1 ms for 64 channels, 56x56, 2 cores of an EPYC 9004, AVX-512).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tvm import ir

from tvm_winograd.gpu import Cpu, Hardware
from tvm_winograd.shapes import ConvSpec, Epilogue
from tvm_winograd.te import direct
from tvm_winograd.te.common import ceil_div

from ..base.blocks import move, too_large
from ..base.kernel import Kernel
from .tiles import REGISTER_TILE, pixel_tile, uneven

_CHUNK = 256  # channels, see _chunk


@dataclass(frozen=True)
class DirectCpuConfig:
    """Knobs of the direct CPU schedule."""

    lanes: int  # filters (or, for depthwise, pixels) of one vector register, elements
    k_vectors: int  # vectors of filters in the register tile
    h_tile: int  # output rows of the register tile
    w_tile: int  # output columns of the register tile; pixels when flat
    flat: bool  # the map is one row of oh*ow pixels: 1x1, stride 1, no padding only
    k_outer: bool  # filter blocks in the outermost loop: parallel over (n, k, tiles)
    c_chunk: int = 0  # channels of one running sum, sums of sums after that; 0: a single one
    depthwise: bool = False  # lanes run along w, k_tile is 1

    @property
    def tiling(self) -> direct.Tiling:
        k_tile = 1 if self.depthwise else self.lanes * self.k_vectors
        return direct.Tiling(k_tile, self.h_tile, self.w_tile, self.flat, True, True, self.c_chunk)

    @property
    def accumulators(self) -> int:
        """Vector registers that hold sums."""
        pixels = self.h_tile * self.w_tile
        return ceil_div(pixels, self.lanes) if self.depthwise else pixels * self.k_vectors


def supports(spec: ConvSpec, epilogue: Epilogue, hardware: Hardware) -> str | None:
    """None, or the reason why not. Every convolution with 32-bit indices is supported."""
    if not isinstance(hardware, Cpu):
        return f"direct-cpu compiles for llvm, not for {hardware.arch}"
    if reason := direct.applies(spec):
        return reason
    legal = configs(spec, hardware)
    return None if legal else "the padded input has 2^31 elements or more; indices are 32-bit"


def illegal(config: DirectCpuConfig, spec: ConvSpec, hardware: Hardware) -> str | None:
    """None, or the reason why this config cannot compute `spec`."""
    if not isinstance(hardware, Cpu):
        return f"direct-cpu compiles for llvm, not for {hardware.arch}"
    if min(config.lanes, config.k_vectors, config.h_tile, config.w_tile) < 1:
        return f"all sizes must be positive: {config}"
    if config.c_chunk < 0:
        return f"c_chunk={config.c_chunk}: a positive number of channels, or 0, is needed"
    if config.depthwise and config.w_tile % config.lanes:
        return f"w_tile={config.w_tile} must be a multiple of lanes={config.lanes}"
    if config.accumulators > 64:
        return f"{config.accumulators} accumulators: more than 64 vectors only spill"
    return direct.illegal(spec, config.tiling) or too_large(workspace(config, spec) // 4)


def configs(spec: ConvSpec, hardware: Hardware) -> list[DirectCpuConfig]:
    """The legal configs worth trying, the default first."""
    assert isinstance(hardware, Cpu)
    if spec.groups > 1 and _filter_lanes(spec, hardware) == 1:
        only = DirectCpuConfig(hardware.lanes, 1, 1, hardware.lanes, False, True, depthwise=True)
        return [only] if illegal(only, spec, hardware) is None else []
    lanes, flat = _filter_lanes(spec, hardware), direct.can_flatten(spec)
    budget, preferred = REGISTER_TILE[hardware.vector_bits]
    out = []
    for vectors in sorted((1, 2, 4), key=lambda v: (v != preferred, v)):
        if vectors > 1 and (spec.k // spec.groups) % (vectors * lanes):
            continue
        h, w = _pixels(spec, vectors, budget, flat)
        config = DirectCpuConfig(lanes, vectors, h, w, flat, False, _chunk(spec))
        z = direct.sizes(spec, config.tiling)
        first = uneven(spec.n * z.hb * z.wb, hardware.cores)
        out += [replace(config, k_outer=k_outer) for k_outer in (first, not first)]
    return [c for c in out if illegal(c, spec, hardware) is None]


def schedule(sch: Any, config: DirectCpuConfig, hardware: Hardware) -> None:
    """Schedules `te.direct.prim_func(spec, epilogue, config.tiling)` in place."""
    tile, filters = _tile_output(sch, config)
    reduction = _micro_kernel(sch, sch.get_sblock("direct_Y"), filters, config)
    if config.c_chunk:
        _micro_kernel(sch, sch.get_sblock("direct_S"), reduction, config)
    _stage_input(sch, tile, config)


def workspace(config: DirectCpuConfig, spec: ConvSpec) -> int:
    """Bytes of the padded or converted input, where one pass makes all of it."""
    z = direct.sizes(spec, config.tiling)
    h, w = (1, spec.h * spec.w) if config.flat else (spec.h, spec.w)
    as_it_is = max(spec.padding) == 0 and z.hp <= h and z.wp <= w and spec.dtype == spec.acc
    return 4 * spec.n * spec.c * z.hp * z.wp if config.k_outer and not as_it_is else 0


def _tile_output(sch: Any, config: DirectCpuConfig) -> tuple[Any, Any]:
    """Orders the output's loops; returns (the parallel loop, that over blocks of filters)."""
    block = sch.get_sblock("direct_O")
    n, kb, hb, wb, hi, wi, ki = sch.get_loops(block)
    if sch.get(block).annotations["layout"] != "NHWC":
        sch.reorder(ki, hi, wi)  # stores run along w
    if not config.k_outer:
        sch.reorder(n, hb, wb, kb)
    parallel = sch.fuse(n, kb, hb, wb) if config.k_outer else sch.fuse(n, hb, wb)
    sch.parallel(parallel)
    return parallel, parallel if config.k_outer else kb


def _stage_input(sch: Any, tile: Any, config: DirectCpuConfig) -> None:
    """direct_P per tile (packed, in L1 or L2), or as one parallel pass when filters are outer."""
    pad = sch.get_sblock("direct_P")
    if not config.k_outer:
        sch.compute_at(pad, tile)
    elif _is_copy(sch, pad):
        sch.compute_inline(pad)
    else:
        sch.parallel(sch.fuse(*sch.get_loops(pad)[:2]))


def _micro_kernel(sch: Any, sums: Any, anchor: Any, config: DirectCpuConfig) -> Any:
    """Registers inside `anchor`: reduction outside, pixels unrolled, filters (or pixels) vectors.

    Returns:
        The innermost reduction loop.
    """
    _, _, _, _, hi, wi, ki, *reduction = move(sch, sums, anchor)
    sch.set_scope(sums, 0, "local")
    sch.reorder(*reduction, hi, wi, ki)
    _registers(sch, [hi, wi, ki], config)
    init = sch.decompose_reduction(sums, reduction[0])
    _registers(sch, sch.get_loops(init)[-3:], config)
    return reduction[-1]


def _registers(sch: Any, loops: list[Any], config: DirectCpuConfig) -> None:
    lanes_along = loops[1] if config.depthwise else loops[2]
    outer, lanes = sch.split(lanes_along, [None, config.lanes])
    for loop in loops:
        if loop is not lanes_along:
            sch.unroll(loop)
    sch.unroll(outer)
    sch.vectorize(lanes)


def _is_copy(sch: Any, block: Any) -> bool:
    """True when the block moves elements unchanged: no padding, no conversion."""
    return isinstance(sch.get(block).body.value, ir.TensorLoad)


def _filter_lanes(spec: ConvSpec, hardware: Cpu) -> int:
    """Filters of one vector: as many as the group has, at most the vector's lanes."""
    lanes = hardware.lanes
    if spec.groups == 1:
        return lanes
    while (spec.k // spec.groups) % lanes:
        lanes //= 2
    return lanes


def _chunk(spec: ConvSpec) -> int:
    """Channels of one running sum: the largest divisor of at most 256; 0 when it is not worth it.

    The rounding error of a running sum grows with its length: 512 channels, 3x3, 7x7 map 1.1e-6
    from float64 as one sum of 4,608 products, 2.9e-7 as 18 sums of 256, at the same speed. (Two
    sums of 256 would be slow: LLVM unrolls that loop and spills, 1x1 with 512 channels 1.4
    instead of 1.0 ms.)
    """
    per_group = spec.c // spec.groups
    best = max(d for d in range(1, min(per_group, _CHUNK) + 1) if per_group % d == 0)
    return best if best >= 32 and per_group * spec.r * spec.s > 4 * _CHUNK else 0


def _pixels(spec: ConvSpec, vectors: int, budget: int, flat: bool) -> tuple[int, int]:
    """(h_tile, w_tile) that covers the map in the fewest cycles, then with the least input."""
    oh, ow = (1, spec.oh * spec.ow) if flat else (spec.oh, spec.ow)

    def halo(h: int, w: int) -> int:
        return (h * spec.strides[0] + spec.r - 1) * (w * spec.strides[1] + spec.s - 1)

    return pixel_tile(oh, ow, vectors, budget, then=halo)


KERNEL = Kernel(
    name="direct-cpu",
    algorithm="direct",
    target="llvm",
    config=DirectCpuConfig,
    supports=supports,
    illegal=illegal,
    configs=configs,
    prim_func=lambda spec, epilogue, config: direct.prim_func(spec, epilogue, config.tiling),
    schedule=schedule,
    pack_weights=lambda w, spec, config: direct.pack_weights(w, spec, config.tiling),
    weight_func=lambda spec, config: direct.weight_func(spec, config.tiling),
    workspace=workspace,
)
