"""What the matrix product kernels cost: estimated seconds, bytes of workspace."""

from __future__ import annotations

from dataclasses import dataclass

from tvm_winograd.gpu import Gpu
from tvm_winograd.shapes import ConvSpec
from tvm_winograd.te import gemm
from tvm_winograd.te.common import ceil_div

from ..base import product_time
from .config import Product


@dataclass(frozen=True)
class Instructions:
    """Instructions of a thread for a copy to shared memory with its address (SASS for sm_90)."""

    vector: int = 4  # of 16 bytes, by cp.async
    word: int = 5  # of 4 bytes, by cp.async
    guarded_word: int = 8  # the same, zero outside the map
    through_registers: int = 6  # of a word
    # The guards of a step, all words together. Steps of whole channels compute them before the
    # loop: the 32x32 tile then has 23.4 instructions a product, not 29.1.
    step_guard: int = 50


@dataclass(frozen=True)
class Waits:
    """What `seconds` knows beside `cost`. `cost` alone chooses the default.

    Fitted to measurements by benchmarks/fit_estimates.py; the estimates are then within 12 %
    (standard deviation).
    """

    measured: float = 1.10  # a time measured over one by `cost`
    # Issue slots of a guarded word, beyond its counted instructions.
    guarded: float = 10
    # Issue slots of a word with strides, or in steps of more than 9 products that are no whole
    # channels: its address does not fit the copy.
    far: float = 20
    # Clocks of a guarded word that is no neighbour of the next: nvcc makes a branch of each, one
    # after the other; not of guards from before the loop.
    branch: float = 70
    # Time of the last round's stores over that of as many bytes: whole vectors, and words, which
    # leave sectors partly filled.
    store: float = 0.75
    word_store: float = 2.7
    im2col: float = 1.8  # time of the kernel that writes B over one that only copies


COPY = Instructions()
WAITS = Waits()


def cost(config: Product, spec: ConvSpec, gpu: Gpu) -> float:
    """Estimated time in clocks of an SM."""
    return _clocks(_loop(config, spec), config, spec, gpu)


def _clocks(loop: product_time.Product, config: Product, spec: ConvSpec, gpu: Gpu) -> float:
    time = product_time.clocks(loop, gpu)
    if config.parts == 1:
        return time
    z = gemm.sizes(spec, config.tiling)
    moved = 8 * config.parts * spec.groups * z.kb * z.bk * z.pb * z.bp
    return time + product_time.LAUNCH_CLOCKS + moved / gpu.sms / product_time.L2_BYTES


def seconds(config: Product, spec: ConvSpec, gpu: Gpu) -> float:
    """Estimated time; not less than device memory needs, the im2col kernel included."""
    loop = _loop(config, spec)
    clocks = WAITS.measured * _clocks(loop, config, spec, gpu) + _gathering(config, spec, gpu, loop)
    time = clocks / gpu.hertz + _last_stores(config, spec, gpu, loop)
    time = max(time, product_time.stream_seconds(spec.bytes, gpu))
    if config.inputs == "workspace":
        moved = spec.bytes // 2 + workspace(config, spec)
        time += product_time.stream_seconds(moved, gpu, slower=WAITS.im2col)
    return time


def least(spec: ConvSpec, gpu: Gpu) -> float:
    """Less than `seconds` of any config."""
    memory = product_time.stream_seconds(spec.bytes, gpu)
    return max(memory, product_time.least_seconds(spec, gpu))


def least_of_im2col(spec: ConvSpec, gpu: Gpu) -> float:
    """The same, the im2col kernel included."""
    return least(spec, gpu) + product_time.stream_seconds(spec.bytes // 2, gpu, WAITS.im2col)


def _loop(config: Product, spec: ConvSpec) -> product_time.Product:
    """The product kernel's main loop."""
    z = gemm.sizes(spec, config.tiling)
    return product_time.Product(
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


def _gathering(config: Product, spec: ConvSpec, gpu: Gpu, loop: product_time.Product) -> float:
    """Clocks of gathering B from the input, beside those that `cost` counts."""
    if config.inputs != "async4":
        return 0.0
    whole, padded = in_whole_channels(config, spec), max(spec.padding) > 0
    branch = config.store == "words" and not whole
    word = 0.0
    if padded and not branch:
        word = WAITS.far if config.bc > 9 and not whole else WAITS.guarded
    if max(spec.strides) > 1 and not whole:
        word = WAITS.far
    words = loop.steps * config.bc * config.bp  # of a block
    issued = ceil_div(loop.blocks, gpu.sms) * words * word / gpu.warp / product_time.SCHEDULERS
    _, rounds = product_time.occupancy(loop, gpu)
    return issued + rounds * words / config.threads * WAITS.branch * (padded and branch)


def _last_stores(config: Product, spec: ConvSpec, gpu: Gpu, loop: product_time.Product) -> float:
    """Seconds in which the last round of blocks stores and nothing else runs."""
    if config.parts > 1:
        return 0.0
    resident, _ = product_time.occupancy(loop, gpu)
    share = min(1.0, resident * gpu.sms / loop.blocks)
    outputs = 4 * share * spec.n * spec.k * spec.oh * spec.ow
    slower = WAITS.word_store if config.store == "words" else WAITS.store
    return slower * product_time.memory_seconds(outputs, gpu)


def workspace(config: Product, spec: ConvSpec) -> int:
    """Bytes of device memory beside the arguments: B of im2col, the parts of M."""
    z = gemm.sizes(spec, config.tiling)
    words = z.q if config.inputs == "workspace" else 0
    words += config.parts * z.kb * z.bk if config.parts > 1 else 0
    return 4 * spec.groups * z.pb * z.bp * words


def _copies(config: Product, spec: ConvSpec) -> float:
    """Instructions of a block in a step that move data."""
    guarded = max(spec.padding) > 0 and config.inputs != "workspace"
    word = COPY.guarded_word if guarded else COPY.word
    of_input = {"async4": word, "registers": COPY.through_registers}.get(
        config.inputs, COPY.vector / 4
    )
    copies = config.bc * (config.bk * COPY.vector / 4 + config.bp * of_input)
    each_step = guarded and not in_whole_channels(config, spec)
    return copies + COPY.step_guard * each_step * config.threads


def in_whole_channels(config: Product, spec: ConvSpec) -> bool:
    """Whether steps are of whole channels, so that guards are computed before the loop."""
    return config.taps_inner and config.bc % (spec.r * spec.s) == 0
