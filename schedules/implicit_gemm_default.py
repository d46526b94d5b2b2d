"""Which configs of the matrix product kernels are worth trying, and the default among them."""

from __future__ import annotations

from dataclasses import fields, replace

from tvm_winograd.gpu import Gpu, Hardware
from tvm_winograd.shapes import ConvSpec
from tvm_winograd.te import gemm
from tvm_winograd.te.common import ceil_div, input_reach

from . import blocks, product_time
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
_LONGEST_STEP = 36  # products, all unrolled
# Instructions of copies with their addresses (SASS for sm_90): of 16 bytes, of a word, of a word
# with a guard, through registers, and of a step's guard itself. NHWC gathers words always, and a
# word takes as many there: a step of the 128x64 tile has 604 (NCHW 601), with guards 652 (675).
_COPY, _WORD, _GUARDED_WORD, _REGISTERS, _GUARD = 4, 5, 8, 6, 50
# Measured over estimated: 311 configs of ResNets' layers at batch 1, 32, 128 (H200, 2026-11-30).
_MEASURED = 1.16


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
    out = [first, *_whole_channels(first, spec)]
    for tile in LADDER + _OTHERS:
        out += [_fit(tile, spec, hw)] * (first.parts == 1) + _split(tile, spec, hw)[:1]
    if first.inputs == "async16":
        out.append(replace(first, inputs="async4"))
    if first.buffers > 2:
        out += [replace(first, buffers=6), replace(first, inputs="registers", buffers=2)]
    out += [replace(first, parts=n) for n in (first.parts // 2, 2 * first.parts) if n]
    return [c for c in dict.fromkeys(out) if illegal(c, spec, hw) is None][:_MOST]


def _whole_channels(first: Implicit, spec: ConvSpec) -> list[Implicit]:
    """`first` in steps of 1, 2, 4 channels with all their taps, addressed and guarded once.

    A step of the 128x64 tile (3x3, stride 2; SASS for sm_90) has 1.32 instructions an FFMA with
    (r, s, c); 1.20, 1.18, 1.16 like this, in 11, 22, 43 KB of code.
    """
    taps = spec.r * spec.s
    if taps == 1 or first.taps_inner or first.inputs != "async4":
        return []
    steps = [(n * taps, buffers) for n, buffers in ((1, 4), (2, 2), (4, 2))]
    ways = [replace(first, bc=bc, buffers=b, taps_inner=True) for bc, b in steps]
    return [c for c in ways if c.bc <= _LONGEST_STEP]


def im2col_configs(spec: ConvSpec, hw: Hardware) -> list[Im2col]:
    """The same, with B from a workspace: the implicit default's tile first.

    Through registers where that has more elements than cp.async reaches.
    """
    for implicit in (configs(spec, hw), [portable(spec)]):
        found = dict.fromkeys(_with_workspace(config) for config in implicit)
        if legal := [c for c in found if illegal(c, spec, hw) is None]:
            return legal
    return []


def _with_workspace(config: Implicit) -> Im2col:
    values = {f.name: getattr(config, f.name) for f in fields(Product)} | {
        "inputs": "workspace",
        "buffers": 1 if config.weights == "registers" else max(config.buffers, 3),
    }
    return Im2col(**values)


def cost(config: Product, spec: ConvSpec, gpu: Gpu) -> float:
    """Estimated time in clocks of an SM."""
    z = gemm.sizes(spec, config.tiling)
    loop = product_time.Product(
        blocks=spec.groups * config.parts * z.kb * z.pb,
        steps=z.q // config.parts // config.bc,
        threads=config.threads,
        tk=config.tk,
        tp=config.tp,
        bc=config.bc,
        copies=_copies(config, spec),
        step_bytes=4 * config.bc * (config.bk + config.bp),
        shared_bytes=config.shared_bytes,
        buffers=config.buffers,
    )
    time = product_time.clocks(loop, gpu)
    if config.parts == 1:
        return time
    moved = 8 * config.parts * spec.groups * z.kb * z.bk * z.pb * z.bp
    return time + product_time.LAUNCH_CLOCKS + moved / gpu.sms / product_time.L2_BYTES


def seconds(config: Product, spec: ConvSpec, gpu: Gpu) -> float:
    """Estimated time; not less than device memory needs, the im2col kernel included."""
    least = product_time.stream_seconds(spec.bytes, gpu)
    time = max(least, _MEASURED * cost(config, spec, gpu) / gpu.hertz)
    if config.inputs == "workspace":
        time += product_time.stream_seconds(spec.bytes // 2 + workspace(config, spec), gpu)
    return time


def workspace(config: Product, spec: ConvSpec) -> int:
    """Bytes of device memory beside the arguments: B of im2col, the parts of M."""
    z = gemm.sizes(spec, config.tiling)
    words = z.q if config.inputs == "workspace" else 0
    words += config.parts * z.kb * z.bk if config.parts > 1 else 0
    return 4 * spec.groups * z.pb * z.bp * words


def _copies(config: Product, spec: ConvSpec) -> float:
    """Instructions of a block in a step that move data."""
    guarded = max(spec.padding) > 0 and config.inputs != "workspace"
    word = _GUARDED_WORD if guarded else _WORD
    of_input = {"async4": word, "registers": _REGISTERS}.get(config.inputs, _COPY / 4)
    copies = config.bc * (config.bk * _COPY / 4 + config.bp * of_input)
    return copies + _GUARD * guarded * config.threads


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
    if spec.dtype != "float32" or input_reach(spec) > blocks.MOST_COPIED:
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
