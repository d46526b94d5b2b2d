"""Winograd F(2x2, 3x3) in one CUDA kernel, fp32 FMA: the openCNN scheme (arXiv 2102.08942).

A block computes `bk` filters x `bp` output tiles. Per step of `bc` channels it loads 4x4 input
patches, transforms them into shared memory, copies the pre-transformed weights beside them and
multiplies; at the end the accumulators go through shared memory, in rounds, to the threads that
transform and store whole output tiles. A thread owns one (eps, nu) and `tk` x `tp` accumulators.

    grid    (p block, k block)      threads  (lane, warp)
    U       shared  (bc, 16, tk/4, bk/tk, 4)         two buffers with cp.async, else one
    V       shared  (bc, 16, tp/4, bp/tp, 4)         one buffer, two barriers a step
    M       registers, then shared (16, tk/4/rounds, bk/tk, 4, tp/4, bp/tp, 4)

While a step multiplies, the next step's patches are on their way to registers and its weights
on their way to shared memory (cp.async) or registers (sm_75).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm_winograd.gpu import Gpu, Hardware
from tvm_winograd.shapes import ConvSpec, Epilogue
from tvm_winograd.te import winograd
from tvm_winograd.te.common import ceil_div

from . import blocks
from .blocks import Block, Loop, Schedule
from .kernel import Kernel

_POINTS = 16  # (eps, nu) pairs of F(2x2, 3x3)
_PORTABLE_SHARED = 48 * 1024  # bytes every CUDA GPU gives a block without opting in
_V_PAD = 4  # words a channel of V, so that lanes along channels (NHWC) meet different banks


@dataclass(frozen=True)
class Fused:
    """Sizes of one block and one thread, and how data moves."""

    bk: int = 64  # filters a block
    bp: int = 32  # output tiles a block
    bc: int = 8  # channels a step
    tk: int = 16  # filters a thread
    tp: int = 8  # output tiles a thread
    # What the lane bits count, high to low: (e)ps/nu, (k) filters, (p) tiles. U's address ignores
    # the p bits, V's the k bits: with bit 0 a p and bit 1 a k a 16-byte shared load takes two
    # wavefronts instead of four (428 -> 392 us at (128, 256, 14^2), H200, 2026-11-30).
    lanes: str = "epkkp"
    weights: str = "async"  # how U reaches shared memory: "async" (cp.async) or "registers"
    rounds: int = 4  # of the output transform; divides tk/4 and the shared memory of M
    unroll: bool = True  # the channels of a step

    @property
    def lane_k(self) -> int:
        """Threads along the filters of a block."""
        return self.bk // self.tk

    @property
    def lane_p(self) -> int:
        """Threads along the tiles of a block."""
        return self.bp // self.tp

    @property
    def lane_e(self) -> int:
        """(eps, nu) pairs of a warp."""
        return blocks.WARP // (self.lane_k * self.lane_p)

    @property
    def threads(self) -> int:
        return _POINTS * self.lane_k * self.lane_p

    @property
    def warps(self) -> int:
        return self.threads // blocks.WARP

    @property
    def accumulators(self) -> int:
        """fp32 registers of a thread for M."""
        return self.tk * self.tp

    @property
    def shared_bytes(self) -> int:
        """Of the kernel: V, and in one place U during the main loop, M's rounds after it."""
        copies = 2 if self.weights == "async" else 1
        u = copies * self.bc * _POINTS * self.bk
        v = self.bc * (_POINTS * self.bp + _V_PAD)
        m = _POINTS * self.bk // self.rounds * (self.bp + 4)
        return 4 * (v + max(u, m))

    @property
    def tiling(self) -> winograd.Tiling:
        k_tile, p_tile = (self.tk // 4, self.lane_k, 4), (self.tp // 4, self.lane_p, 4)
        return winograd.Tiling(2, k_tile, p_tile, self.bc, channel_outer=True)


def supports(spec: ConvSpec, epilogue: Epilogue, hw: Hardware) -> str | None:
    """None, or why this kernel cannot compute `spec` on `hw`."""
    if hw.kind != "cuda":
        return f"a CUDA kernel, got a {hw.kind} target"
    if reason := winograd.applies(spec):
        return reason
    return illegal(portable(spec), spec, hw)


def illegal(config: Fused, spec: ConvSpec, hw: Hardware) -> str | None:
    """None, or why `config` cannot run `spec` on `hw`."""
    if not isinstance(hw, Gpu):
        return f"a CUDA kernel, got a {hw.kind} target"
    if reason := _malformed(config):
        return reason
    if config.weights == "async" and not hw.has_async_copy:
        return f'weights="async" needs cp.async (sm_80 or newer), got {hw.arch}'
    if config.shared_bytes > hw.shared_per_block:
        return f"{config.shared_bytes} bytes of shared memory; {hw.arch} has {hw.shared_per_block}"
    needed = config.accumulators + _other_registers(config)
    available = min(hw.max_registers, hw.registers_per_sm // config.threads)
    if needed > available:
        return f"about {needed} registers a thread; {config.threads} threads may have {available}"
    if (kb := winograd.sizes(spec, config.tiling).kb) > 65535:
        return f"{kb} blocks of filters; a grid has at most 65535"
    return None


def _malformed(config: Fused) -> str | None:
    """None, or why the numbers of `config` do not fit each other, whatever the GPU."""
    for name in ("bk", "bp", "bc", "tk", "tp", "rounds"):
        if (value := getattr(config, name)) < 1:
            return f"{name}={value}: a positive integer is needed"
    if config.tk % 4 or config.tp % 4:
        return f"tk={config.tk}, tp={config.tp}: multiples of 4 (16-byte accesses) are needed"
    if config.bk % config.tk or config.bp % config.tp:
        return f"a {config.tk}x{config.tp} thread tile does not divide {config.bk}x{config.bp}"
    want = [config.lane_e, config.lane_k, config.lane_p]
    if [2 ** config.lanes.count(ch) for ch in "ekp"] != want or len(config.lanes) != 5:
        return f"lanes={config.lanes!r}: 5 bits for e, k, p = {want[0]}, {want[1]}, {want[2]}"
    if config.tk // 4 % config.rounds:
        return f"rounds={config.rounds} does not divide tk/4={config.tk // 4}"
    if config.weights not in ("async", "registers"):
        return f'weights={config.weights!r}: "async" or "registers"'
    return None


def _other_registers(config: Fused) -> int:
    """Beside the accumulators: fragments, data in flight, addresses (ptxas, sm_75 to sm_120)."""
    patches = ceil_div(config.bc * config.bp, config.threads) * _POINTS
    weights = ceil_div(config.bc * _POINTS * config.bk, config.threads)
    in_flight = patches + (weights if config.weights == "registers" else 0)
    return config.tk + config.tp + in_flight + 24


def portable(spec: ConvSpec) -> Fused:
    """For any GPU since sm_75, in 48 KB: what PTX for unknown GPUs is made of."""
    return Fused(bc=4, weights="registers")


def default(spec: ConvSpec, gpu: Gpu) -> Fused:
    """The largest step that the shared memory holds."""
    for config in (Fused(), Fused(bc=4), portable(spec)):
        if illegal(config, spec, gpu) is None:
            return config
    return portable(spec)


def configs(spec: ConvSpec, hw: Hardware) -> list[Fused]:
    """The legal configs worth trying, the default first."""
    assert isinstance(hw, Gpu)
    tiles = [
        (64, 32, 16, 8, "epkkp"),
        (64, 32, 8, 8, "kpkkp"),
        (32, 64, 8, 16, "ekppk"),
        (32, 32, 8, 8, "epkkp"),
        (32, 32, 16, 8, "eepkp"),
        (64, 16, 16, 8, "eekpk"),
    ]
    out = [default(spec, hw)]
    for bk, bp, tk, tp, lanes in tiles:
        for bc in (8, 4, 16):
            for weights in ("async", "registers"):
                for unroll in (True, False):
                    config = Fused(bk, bp, bc, tk, tp, lanes, weights, tk // 4, unroll)
                    if config not in out and illegal(config, spec, hw) is None:
                        out.append(config)
    return out


def prim_func(spec: ConvSpec, epilogue: Epilogue, config: Fused) -> Any:
    """main(X, U[, B][, R], O), unscheduled."""
    return winograd.tiled_prim_func(spec, epilogue, config.tiling)


def schedule(sch: Schedule, config: Fused, gpu: Gpu) -> None:
    """Schedule `prim_func(spec, epilogue, config)` in place."""
    layout = str(sch.get(sch.get_sblock("wino_O")).annotations["layout"])
    p_block, k_round, turn = _bind_output(sch, config, layout)
    _output_transform(sch, config, layout, k_round, turn)
    step, channel = _gemm_tile(sch, config, p_block)
    weights = _stage_operands(sch, config, step, channel)
    _input_transform(sch, config, layout, step)
    for block in weights:
        blocks.deal(sch, blocks.move(sch, block, step), config.warps, vector=4)
    sch.decompose_reduction(sch.get_sblock("wino_M"), step)
    _pipeline(sch, config, step)


def _bind_output(sch: Schedule, config: Fused, layout: str) -> tuple[Loop, Loop, Loop]:
    """Output tiles to blocks, rounds and threads; returns (p block, k round, turn).

    Lanes run along what is contiguous in memory: tiles, or filters in NHWC.
    """
    block = sch.get_sblock("wino_O")
    width = int(sch.get(block).writes[0].source.ty.shape[-1])
    k_block, k1, k0, k2, p_block, p1, p0, p2, i, j = sch.get_loops(block)
    k_round, k1 = sch.split(k1, [config.rounds, None])
    k, p = [k1, k0, k2], [p1, p0, p2]
    inner = p + k if layout == "NHWC" else k + p
    sch.reorder(k_block, p_block, k_round, *inner, i, j)
    sch.bind(p_block, "blockIdx.x")
    sch.bind(k_block, "blockIdx.y")
    turn = blocks.deal(sch, inner, config.warps)
    blocks.unroll(sch, k_round, i)
    if layout == "NCHW" and width % 2 == 0:
        sch.vectorize(j)
    else:
        sch.unroll(j)
    return p_block, k_round, turn


def _output_transform(sch: Schedule, config: Fused, layout: str, k_round: Loop, turn: Loop) -> None:
    """A^T M A in registers; M comes out of shared memory, where its owners put it each round."""
    for name in ("wino_Y", "wino_Z"):
        block = sch.get_sblock(name)
        loops = blocks.move(sch, block, turn)
        sch.set_scope(block, 0, "local")
        blocks.unroll(sch, *loops)
    shared = sch.cache_read(sch.get_sblock("wino_Z"), 0, "shared.dyn")
    e, kb, k1, k0, k2, pb, p1, p0, p2 = blocks.move(sch, shared, k_round)
    warp, lane, e = _lanes(sch, config, e, k0, p0, [kb, pb, k1, k2, p1, p2])
    blocks.unroll(sch, kb, pb, e, k1, k2, p1)
    sch.vectorize(p2)
    # No two lanes of a quarter warp write to one bank (NHWC: two of a half warp read from one).
    axis, row, pad = (4, config.bp, 4) if layout == "NHWC" else (3, 4 * config.bp, 8)
    sch.storage_align(shared, 0, axis, min(row, 32), pad)


def _lanes(
    sch: Schedule, config: Fused, e: Loop, k0: Loop, p0: Loop, inner: list[Loop]
) -> tuple[Loop, Loop, Loop]:
    """Bind the owners of M: (eps, nu) to warps, the rest to lanes; returns (warp, lane, e)."""
    warp, e_lane, e_own = sch.split(e, [config.warps, config.lane_e, 1])
    bits = blocks.interleave(sch, config.lanes, e=e_lane, k=k0, p=p0)
    sch.reorder(warp, *bits, e_own, *inner)
    lane = sch.fuse(*bits)
    blocks.bind_warps(sch, warp, lane)
    return warp, lane, e_own


def _gemm_tile(sch: Schedule, config: Fused, p_block: Loop) -> tuple[Loop, Loop]:
    """M in registers, an outer product a channel; returns the loops (step, channel in step)."""
    block = sch.get_sblock("wino_M")
    sch.set_scope(block, 0, "local")
    e, kb, k1, k0, k2, pb, p1, p0, p2, c = blocks.move(sch, block, p_block)
    step, channel = sch.split(c, [None, config.bc])
    tile = [kb, pb, k1, p1, k2, p2]
    _, _, e = _lanes(sch, config, e, k0, p0, [step, channel, *tile])
    sch.reorder(step, channel, e)
    blocks.unroll(sch, e, *tile)
    if config.unroll:
        sch.unroll(channel)
    return step, channel


def _stage_operands(sch: Schedule, config: Fused, step: Loop, channel: Loop) -> list[Block]:
    """Fragments to registers, U and V to shared memory; returns U's copies, last first, unplaced."""
    m = sch.get_sblock("wino_M")
    fragments = [sch.cache_read(m, i, "local") for i in (0, 1)]
    shared = sch.cache_read(fragments[0], 0, "shared.dyn")
    sch.set_scope(sch.get_sblock("wino_V"), 0, "shared.dyn")
    for fragment in fragments:
        *outer, vector = blocks.move(sch, fragment, channel)
        blocks.unroll(sch, *outer)
        sch.vectorize(vector)
    if config.weights == "async":
        return [shared]
    return [shared, sch.cache_read(shared, 0, "local")]


def _input_transform(sch: Schedule, config: Fused, layout: str, step: Loop) -> None:
    """V = B^T d B: a thread a patch; patches are loaded apart, to be fetched a step ahead."""
    v, t, d = (sch.get_sblock(name) for name in ("wino_V", "wino_T", "wino_D"))
    c, e, pb, p1, p0, p2 = blocks.move(sch, v, step)
    order = [pb, p1, p0, c, p2] if layout == "NHWC" else [c, pb, p1, p0, p2]
    sch.reorder(*order, e)
    turn = blocks.deal(sch, order, config.warps)
    sch.unroll(e)
    sch.storage_align(v, 0, 0, 32, _V_PAD)
    blocks.unroll(sch, *blocks.move(sch, t, turn))
    c, p, a, b = blocks.move(sch, d, step)
    order = [c, p]
    if layout == "NHWC":
        p, p2 = sch.split(p, [None, 4])
        order = [p, c, p2]
        sch.reorder(*order)
    blocks.deal(sch, order, config.warps)
    blocks.unroll(sch, a, b)
    for block in (t, d):
        sch.set_scope(block, 0, "local")


def _pipeline(sch: Schedule, config: Fused, step: Loop) -> None:
    """Overlap step i + 1's global loads with step i's arithmetic.

    The statements of a step are: load patches, transform them, copy U (two copies if through
    registers), multiply. Patches are transformed (their loads were a step ago), then loaded anew.
    """
    if config.weights == "async":
        stage, order = [0, 1, 0, 1], [1, 0, 2, 3]
        sch.annotate(step, "software_pipeline_async_stages", [0])
    else:
        stage, order = [0, 1, 0, 1, 1], [2, 0, 3, 1, 4]
    sch.annotate(step, "software_pipeline_stage", stage)
    sch.annotate(step, "software_pipeline_order", order)


def weight_func(spec: ConvSpec, config: Fused) -> Any:
    """main(W, U), unscheduled: the filter transform on the device."""
    from tvm import te

    w = te.placeholder(spec.weight_shape, spec.dtype, name="W")
    return te.create_prim_func([w, winograd.weight_transform(w, spec, config.tiling)])


KERNEL = Kernel(
    name="winograd-f2-fused",
    algorithm="winograd-f2",
    target="cuda",
    config=Fused,
    supports=supports,
    illegal=illegal,
    configs=configs,
    prim_func=prim_func,
    schedule=schedule,
    pack_weights=lambda w, spec, config: winograd.pack_weights(w, spec, config.tiling),
    weight_func=weight_func,
    pass_config={"tirx.use_async_copy": True},
)
