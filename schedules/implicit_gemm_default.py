"""Which configs of the matrix product kernels are worth trying, and the default among them."""

from __future__ import annotations

from dataclasses import fields, replace

from tvm_winograd.gpu import Gpu, Hardware
from tvm_winograd.shapes import ConvSpec
from tvm_winograd.te import gemm
from tvm_winograd.te.common import ceil_div

from . import blocks
from .implicit_gemm_config import LONGEST_SUM, MAX_PARTS, Im2col, Implicit, Product, illegal

# Largest reuse first: what the default chooses from.
LADDER = (
    Implicit(bk=128, bp=128),
    Implicit(bk=128),
    Implicit(bp=128),
    Implicit(),
    Implicit(bk=32, tk=4, lanes="ppkkp"),
    Implicit(bp=32, tp=4),
    Implicit(bp=32, tp=4, bc=16),
    Implicit(bk=32, bp=32, tk=4, tp=4),
    Implicit(bk=32, bp=32, tk=4, tp=4, bc=16),
)
_OTHERS = (
    Implicit(bc=16, buffers=3),
    Implicit(bk=32, bp=128, tk=4, lanes="ppkkp"),
    Implicit(bk=32, bp=32, tk=4, lanes="pkkkp"),
)
_MOST = 24  # candidates
# What time is made of, in clocks of an SM: instructions that its four schedulers issue, one a
# clock and warp; the latency of a step, where few warps hide it; bytes from L2; the filling and
# draining of a round of blocks; for parts, the second kernel.
_SCHEDULERS = 4
_LOOP = 30  # instructions of a step's loop, barriers and addresses
# Instructions of copies with their addresses (SASS for sm_90): of 16 bytes, of a word, of a word
# with a guard, through registers, and of a step's guard itself.
_COPY, _WORD, _GUARDED_WORD, _REGISTERS, _GUARD = 4, 5, 8, 6, 50
_STEP_LATENCY = 120  # beside its instructions: two barriers, the first shared loads
# Share of a block's time in which it waits and only other blocks of its SM work: 128x128 tiles, two
# blocks an SM, took 223 us where 64x64, eight, took 207 (a GEMM of F(4x4), H200, 2026-11-30).
_EXPOSED = 0.25
_LOAD_LATENCY = 900  # of device memory or L2
_FILL = 2500  # of a round of blocks: the first loads, the stores
_L2_BYTES = 26  # a clock and SM
_SUM = 3500  # the second kernel's launch and latency; its memory traffic comes on top


def portable(spec: ConvSpec) -> Implicit:
    """For any GPU since sm_75, in 48 KB: what PTX for unknown GPUs is made of."""
    whole = _through_registers(_shaped(Implicit(), spec))
    return replace(whole, parts=ceil_div(gemm.sizes(spec, whole.tiling).q, LONGEST_SUM))


def default(spec: ConvSpec, gpu: Gpu) -> Implicit:
    """The cheapest of all tiles and parts."""
    found = [c for tile in LADDER for c in _split(tile, spec, gpu)[:1]]
    return min(found, key=lambda c: cost(c, spec, gpu), default=portable(spec))


def configs(spec: ConvSpec, hw: Hardware) -> list[Implicit]:
    """The legal configs worth trying, the default first."""
    assert isinstance(hw, Gpu)
    first = default(spec, hw)
    out = [first]
    for tile in LADDER + _OTHERS:
        out += [_fit(tile, spec, hw)] * (first.parts == 1) + _split(tile, spec, hw)[:1]
    if first.inputs == "async16":
        out.append(replace(first, inputs="async4"))
    if first.buffers > 2:
        out += [replace(first, buffers=6), replace(first, inputs="registers", buffers=2)]
    out += [replace(first, parts=n) for n in (first.parts // 2, 2 * first.parts) if n]
    return [c for c in dict.fromkeys(out) if illegal(c, spec, hw) is None][:_MOST]


def im2col_configs(spec: ConvSpec, hw: Hardware) -> list[Im2col]:
    """The same, with B from a workspace: the implicit default's tile first."""
    out = []
    for config in configs(spec, hw):
        values = {f.name: getattr(config, f.name) for f in fields(Product)} | {
            "inputs": "workspace",
            "buffers": 1 if config.weights == "registers" else max(config.buffers, 3),
        }
        out.append(Im2col(**values))
    return [c for c in dict.fromkeys(out) if illegal(c, spec, hw) is None]


def cost(config: Product, spec: ConvSpec, gpu: Gpu) -> float:
    """Estimated time in clocks of an SM."""
    z = gemm.sizes(spec, config.tiling)
    each = ceil_div(spec.groups * config.parts * z.kb * z.pb, gpu.sms)  # blocks an SM
    steps = z.q // config.parts // config.bc
    registers = config.threads * (config.accumulators + 56)
    resident = min(gpu.registers_per_sm // registers, gpu.shared_per_sm // config.shared_bytes)
    resident = max(1, min(resident, each))
    rounds = ceil_div(each, resident)
    issue = _instructions(config, spec)
    ahead = max(1, config.buffers - 1)
    latency = rounds * max(issue + _STEP_LATENCY, _LOAD_LATENCY / ahead)
    bytes_ = each * 4 * config.bc * (config.bk + config.bp)
    busy = max(ceil_div(each * config.warps, _SCHEDULERS) * issue, bytes_ / _L2_BYTES)
    time = steps * max(busy, latency) * (1 + _EXPOSED / resident) + rounds * _FILL
    if config.parts == 1:
        return time
    moved = 8 * config.parts * spec.groups * z.kb * z.bk * z.pb * z.bp
    return time + _SUM + moved / gpu.sms / _L2_BYTES


def _instructions(config: Product, spec: ConvSpec) -> float:
    """Of one warp in one step."""
    fragments = (config.tk + config.tp) // 4
    guarded = max(spec.padding) > 0 and config.inputs != "workspace"
    word = _GUARDED_WORD if guarded else _WORD
    of_input = {"async4": word, "registers": _REGISTERS}.get(config.inputs, _COPY / 4)
    copies = config.bc * (config.bk * _COPY / 4 + config.bp * of_input)
    # A 16-byte shared load occupies the SM's one port for two clocks: half a clock a scheduler.
    product = max(config.accumulators + fragments, 2 * fragments * _SCHEDULERS)
    return config.bc * product + copies / config.threads + _LOOP + _GUARD * guarded


def _split(tile: Implicit, spec: ConvSpec, gpu: Gpu) -> list[Implicit]:
    """`tile` with the reduction whole and in parts of 1, 2, 3, ... steps, cheapest first."""
    config = _fit(tile, spec, gpu)
    steps = gemm.sizes(spec, config.tiling).q // config.bc
    parts = sorted({ceil_div(steps, each) for each in range(1, steps + 1)})
    ways = [replace(config, parts=n) for n in parts if n <= MAX_PARTS]
    legal = [c for c in ways if illegal(c, spec, gpu) is None]
    return sorted(legal, key=lambda c: cost(c, spec, gpu))


def _fit(tile: Implicit, spec: ConvSpec, gpu: Gpu) -> Implicit:
    """`tile` with the ways of moving data that `spec` and `gpu` allow."""
    config = _shaped(tile, spec)
    if not gpu.has_async_copy:
        return _through_registers(config)
    if spec.dtype != "float32":
        return replace(config, inputs="registers", buffers=2, bc=8)
    if gemm.input_consecutive(spec):
        return replace(config, inputs="async16")
    return config


def _shaped(tile: Implicit, spec: ConvSpec) -> Implicit:
    """`tile` with the order of the reduction and the stores that `spec` needs."""
    store = "pixels" if gemm.consecutive(spec) else "words"
    if spec.layout == "NHWC" and spec.k // spec.groups % 4 == 0:
        store = "filters"
    taps = spec.r * spec.s
    if taps == 1 or spec.c // spec.groups % tile.bc == 0:
        return replace(tile, store=store)
    inner = next((n for n in (taps, spec.s) if 4 <= n <= blocks.WARP // 2), tile.bc)
    return replace(tile, store=store, bc=inner, taps_inner=True)


def _through_registers(config: Implicit) -> Implicit:
    return replace(config, weights="registers", inputs="registers", buffers=1, bc=8)
