"""What the fused Winograd kernels can compute, and which of their configs are legal."""

from __future__ import annotations

from tvm_winograd.gpu import Gpu
from tvm_winograd.shapes import ConvSpec, Epilogue
from tvm_winograd.te import winograd
from tvm_winograd.te.common import ceil_div

from ..base import blocks
from ..base.legal import Needs, exceeds
from .config import SCHEDULERS, FusedTile


def supports(spec: ConvSpec, epilogue: Epilogue, gpu: Gpu) -> str | None:
    """None, or why no config can compute `spec`."""
    return winograd.applies(spec)


def needs(config: FusedTile, spec: ConvSpec) -> Needs:
    """What the main kernel takes of a GPU; the sum of parts takes less."""
    scheduler = SCHEDULERS * blocks.WARP  # threads: a warp for each scheduler of an SM
    threads = config.threads * max(1, config.min_blocks)
    threads = ceil_div(threads, scheduler) * scheduler  # as many on each as on the fullest
    registers = config.accumulators + _other_registers(config)
    copies = 'weights="async"' if config.weights == "async" else None
    return Needs(config.shared_bytes, threads, registers, copies)


def illegal(config: FusedTile, spec: ConvSpec, gpu: Gpu) -> str | None:
    """None, or why `config` cannot run `spec` on `gpu`."""
    if reason := _malformed(config) or _bad_output(config, spec.layout):
        return reason
    if config.held and spec.dtype != "float32":
        return f"held: patches of float32 only, got {spec.dtype}"
    if reason := exceeds(needs(config, spec), gpu):
        return reason
    z = winograd.sizes(spec, config.tiling)
    if z.kb > 65535:
        return f"{z.kb} blocks of filters; a grid has at most 65535"
    u = config.all_points * z.c_pad * z.kb * z.bk
    tiles = config.split_c * z.kb * z.bk * z.pb * z.bp * config.m**2
    if reason := blocks.too_large(max(u, tiles), u if config.weights == "async" else 0):
        return reason
    return _bad_steps(config, spec)


def _bad_steps(config: FusedTile, spec: ConvSpec) -> str | None:
    """None, or why C of `spec` cannot be split, and walked through, like that."""
    if config.split_c > config.max_parts:
        return f"split_c={config.split_c}: a thread sums at most {config.max_parts} parts"
    if config.tiles > 1 and config.split_c > 1:
        return f"tiles={config.tiles}: with split_c a thread stores one tile, 16 bytes, at once"
    steps = ceil_div(spec.c, config.bc)
    if (config.split_c - 1) * (each := ceil_div(steps, config.split_c)) >= steps:
        return f"split_c={config.split_c}: {steps} steps of {config.bc} channels leave a part empty"
    ahead = config.buffers + config.stages - 2  # steps; no TVM pass takes more than there are
    if each < ahead and config.weights == "async":
        return f"{ahead} steps ahead (buffers, stages), but {each} of {config.bc} channels in all"
    return None


def _malformed(config: FusedTile) -> str | None:
    """None, or why the sizes of `config` do not fit each other, whatever the GPU."""
    for name in ("copy", "fragment", "stores"):
        if (words := getattr(config, name)) not in (1, 2, 4):
            return f"{name}={words}: 1, 2 or 4 words"
    if reason := config.malformed_tile("bc", "rounds", "unroll", "split_c"):
        return reason
    allowed = [n for n in (1, 2, 3, 4, 6) if config.all_points % n == 0]
    if config.points not in allowed:
        return f"points={config.points}: {', '.join(map(str, allowed))} (eps, nu) a thread"
    if config.bc % config.patches:
        return f"bc={config.bc}: channels for {config.patches} turns of a step's patches"
    want = [config.lane_e, config.lane_k, config.lane_p]
    if [2 ** config.lanes.count(ch) for ch in "ekp"] != want or len(config.lanes) != 5:
        return f"lanes={config.lanes!r}: 5 bits for e, k, p = {want[0]}, {want[1]}, {want[2]}"
    if config.bc * config.all_points * config.bk % (config.copy * config.threads):
        return f"bc={config.bc}: {config.threads} threads cannot share a step's weights evenly"
    if config.bc % config.unroll:
        return f"unroll={config.unroll} does not divide bc={config.bc}"
    for name in ("buffers", "fragments", "m_buffers"):
        if (count := getattr(config, name)) not in (1, 2):
            return f"{name}={count}: 1 or 2 buffers"
    return _bad_pipeline(config)


def _bad_pipeline(config: FusedTile) -> str | None:
    if config.weights == "registers" and config.m > 2:
        return 'weights="registers": a thread\'s share of 36 points is no array; F(4x4) has "async"'
    if config.prefetch != "before" and config.weights == "async":
        return f'prefetch={config.prefetch!r} needs weights="registers": cp.async is a prefetch'
    if config.prefetch == "off" and config.buffers > 1:
        return 'buffers=2 needs a prefetch: with prefetch="off" nothing is written ahead'
    if config.weights != "async" and (config.near or config.stages != 2):
        return f'near and stages need weights="async", got {config.weights!r}'
    if config.stages not in (2, 3, 4):
        return f"stages={config.stages}: 2, 3 or 4"
    if config.fragments > 1 and config.unroll == 1:
        return "fragments=2 needs unroll > 1: the next channel is in the same straight-line code"
    if config.min_blocks < 0:
        return f"min_blocks={config.min_blocks}: 0 (not said) or more blocks"
    return None


def _bad_output(config: FusedTile, layout: str) -> str | None:
    """None, or why M cannot go through shared memory like that."""
    outer, width = config.tk // config.fragment, config.fragment
    if outer % config.rounds and (config.rounds % outer or width % (config.rounds // outer)):
        return f"rounds={config.rounds} does not divide {outer} x {width} filters a thread"
    if config.stores > config.fragment:
        return f"stores={config.stores}: a thread has {config.fragment} neighbours (fragment)"
    if config.tiles not in (1, 2) or config.loads not in (1, 2) or config.loads > config.tiles:
        return f"tiles={config.tiles}, loads={config.loads}: 1 or 2, and no wider load than tiles"
    if config.loads > config.stores:
        return f"loads={config.loads}: neighbours lie apart with stores={config.stores}"
    pairs = (config.stores, config.fragment) == (2, 4) and config.lane_k % config.beside == 0
    if config.every_second and not pairs:
        return (
            f"tiles=2, loads=1: needs stores=2 of fragment=4 (every second tile) and a multiple of "
            f"{config.beside} lanes along filters, got {config.lane_k}"
        )
    if layout == "NHWC" and (config.relaid or config.fragment < 4):
        return "fragment < 4, stores < 4 and compact are for lanes along tiles, not NHWC"
    if config.compact and config.bp < blocks.WARP:
        return f"compact: a row of M must fill {blocks.WARP} banks, got bp={config.bp}"
    return None


def _other_registers(config: FusedTile) -> int:
    """Beside the accumulators: fragments, data in flight, addresses (ptxas, sm_75 to sm_120)."""
    patches = config.patches * config.all_points
    weights = ceil_div(config.bc * config.all_points * config.bk, config.threads)
    in_flight = patches + (weights if config.weights == "registers" else 0)
    operands = (1 if config.by_point else config.points) * (config.tk + config.tp)
    return operands + in_flight + 24
