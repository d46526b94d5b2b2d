"""The config of Winograd F(4x4) in three kernels: sizes, what they cost, legality, defaults."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tvm_winograd.gpu import Gpu, Hardware
from tvm_winograd.shapes import ConvSpec
from tvm_winograd.te import winograd
from tvm_winograd.te.common import ceil_div

from ..base import blocks, product_time
from ..base.register_tile import RegisterTile

POINTS = 36  # (eps, nu) pairs of F(4x4, 3x3)
STORE_PAD = 4  # words behind a 4x4 tile in shared memory, so that 8 tiles' rows meet all banks
K_PAD = 4  # words behind a filter's tiles there: lanes along filters (NHWC) meet different banks


@dataclass(frozen=True)
class Staged(RegisterTile):
    """Sizes of one block and one thread of each kernel, and how data moves."""

    # The GEMM, one (eps, nu) a block.
    bk: int = 64  # filters a block
    bp: int = 64  # output tiles a block
    bc: int = 8  # channels a step
    tk: int = 8  # filters a thread
    tp: int = 8  # output tiles a thread
    # What the lane bits count, high to low: (k) filters, (p) tiles; the warps of a block share
    # the rest. U's address ignores the p bits, V's the k bits: with bit 0 a p and bit 1 a k a
    # 16-byte shared load takes two wavefronts instead of four. "ppkkp" is 1 to 4 % slower
    # (165, not 159 us in the GEMM of (128, 28^2) at batch 128, H200, 2026-11-30).
    lanes: str = "pkpkp"
    copies: str = "async"  # how U and V reach shared memory: "async" (cp.async) or "registers"
    buffers: int = 4  # of U and V in shared memory; 1 with "registers"
    # The transforms.
    threads: int = 256  # a block
    patches: int = 2  # input patches a thread
    # Output tiles a thread. With `row` each of its elements waits for its residual in turn: 128
    # threads of 2 tiles take 56 us at (256, 14^2), batch 128, 256 of one 33 (H200, 2026-11-30).
    tiles: int = 1
    # 0: a thread stores the tile it computed. Else tiles go through shared memory, and neighbouring
    # threads store neighbouring elements of rows of this many tiles.
    row: int = 0
    # The three kernels run once for each of `chunks` equal parts of the tiles, which divides the
    # memory of V and M. It was meant to keep them in L2, but costs more than it brings: 346 us
    # become 359, 370, 378 and 414 with 2, 4, 7 and 14 at (64, 56^2), batch 128 (H200, 2026-11-30).
    chunks: int = 1

    @property
    def gemm_threads(self) -> int:
        return self.lane_k * self.lane_p

    @property
    def warps(self) -> int:
        """Of a GEMM block."""
        return self.gemm_threads // blocks.WARP

    @property
    def channels(self) -> int:
        """Channels of an input transform block, with `bp` tiles each."""
        return self.patches * self.threads // self.bp

    @property
    def filters(self) -> int:
        """Filters of an output transform block, with `bp` tiles each."""
        return self.tiles * self.threads // self.bp

    @property
    def shared_bytes(self) -> int:
        """Of the kernel that needs most."""
        gemm = self.buffers * self.bc * (self.bk + self.bp)
        output = self.filters * (self.bp * (16 + STORE_PAD) + 32) if self.row else 0
        return 4 * max(gemm, output)

    @property
    def tiling(self) -> winograd.Tiling:
        k_tile, p_tile = (self.tk // 4, self.lane_k, 4), (self.tp // 4, self.lane_p, 4)
        return winograd.Tiling(4, k_tile, p_tile, self.bc, channel_outer=False)


# (GEMM tile, blocks an SM that count as enough for it), largest reuse first; the default is the
# first with enough. GEMM us, H200 (132 SMs), 2026-11-30, the first three tiles and bp=16:
# (512, 7^2) batch 32  70, 64, 68     (512, 7^2) batch 1  53,  -, 27, 20
# (256, 14^2) batch 32 63, 59         (64, 56^2) batch 1  6.5, -, 4.1, 4.2
LADDER = (
    (Staged(), 10),
    (Staged(bk=32, tk=4, lanes="ppkkp"), 4),
    (Staged(bk=32, bp=32, tk=4, lanes="pkkkp", patches=1), 3),
    (Staged(bp=16, tk=4, lanes="kkkkp", threads=64, patches=1), 0),
)
# Lost at (256, 14^2), batch 128, where the first takes 207 us in the GEMM: 223, 214, 232.
_OTHERS = (
    Staged(bk=128, bp=128, lanes="ppkkp", patches=4, tiles=2),
    Staged(bk=32, lanes="ppkkp"),
    Staged(bk=128, tk=16, lanes="ppkkp"),
)


_MOST_CHUNKS = 8
# Measured over estimated time of the GEMM: the three kernels are then within 9 % (standard
# deviation of 251 configs of 88 convolutions; H200, 2026-11-30).
_MEASURED = 1.13


def illegal(config: Staged, spec: ConvSpec, hw: Hardware) -> str | None:
    """None, or why `config` cannot run `spec` on `hw`."""
    if not isinstance(hw, Gpu):
        return f"a CUDA kernel, got a {hw.kind} target"
    if reason := _malformed(config):
        return reason
    if config.copies == "async" and not hw.has_async_copy:
        return f'copies="async" needs cp.async (sm_80 or newer), got {hw.arch}'
    if config.shared_bytes > hw.shared_per_block:
        return f"{config.shared_bytes} bytes of shared memory; {hw.arch} has {hw.shared_per_block}"
    needed = config.accumulators + config.tk + config.tp + _staged_registers(config) + 32
    available = min(hw.max_registers, hw.registers_per_sm // config.gemm_threads)
    if needed > available:
        return f"about {needed} registers; {config.gemm_threads} threads may have {available} each"
    z = winograd.sizes(spec, config.tiling)
    if z.pb % config.chunks:
        return f"chunks={config.chunks} does not divide {z.pb} blocks of tiles"
    if z.kb > 65535:
        return f"{z.kb} blocks of filters; a grid has at most 65535"
    u = POINTS * z.c_pad * z.kb * z.bk
    v, m = (POINTS * z.pb * z.bp * n // config.chunks for n in (z.c_pad, z.kb * z.bk))
    tiles = 16 * z.kb * z.bk * z.pb * z.bp
    return blocks.too_large(max(u, v, m, tiles), max(u, v) if config.copies == "async" else 0)


def _malformed(config: Staged) -> str | None:
    """None, or why the numbers of `config` do not fit each other, whatever the GPU."""
    if reason := config.malformed_tile("bc", "buffers", "threads", "patches", "tiles", "chunks"):
        return reason
    if config.row < 0:
        return f"row={config.row}: 0 or a positive integer is needed"
    if config.copies not in ("async", "registers"):
        return f'copies={config.copies!r}: "async" or "registers"'
    return _malformed_gemm(config) or _malformed_transforms(config)


def _malformed_gemm(config: Staged) -> str | None:
    if reason := config.malformed_lanes():
        return reason
    for name in ("bk", "bp"):
        if config.bc * getattr(config, name) % (4 * config.gemm_threads):
            return f"{name}={getattr(config, name)}, bc={config.bc}: a step's copy is uneven"
    if (config.copies == "async") != (config.buffers > 1):
        return f'buffers={config.buffers} with copies={config.copies!r}: 2 or more if "async", or 1'
    return None


def _malformed_transforms(config: Staged) -> str | None:
    if config.threads % blocks.WARP or config.threads > 1024:
        return f"threads={config.threads}: a multiple of 32, at most 1024"
    for name in ("patches", "tiles"):
        if getattr(config, name) * config.threads % config.bp:
            return f"{name}={getattr(config, name)}: not {config.bp} tiles for {config.threads}"
    if config.bc % config.channels:
        return f"{config.channels} channels an input transform block do not divide bc={config.bc}"
    if config.row and config.bp % config.row:
        return f"row={config.row} does not divide bp={config.bp}"
    if config.filters > 2 and (config.filters % 4 or config.lane_k % (config.filters // 4)):
        return f"{config.filters} filters an output transform block do not divide bk={config.bk}"
    return None


def _staged_registers(config: Staged) -> int:
    """A step's share of U and V on its way through a thread's registers."""
    if config.copies == "async":
        return 0
    return config.bc * (config.bk + config.bp) // config.gemm_threads


def portable(spec: ConvSpec) -> Staged:
    """For any GPU since sm_75, in 48 KB: what PTX for unknown GPUs is made of."""
    return Staged(copies="registers", buffers=1, row=_row(spec))


def default(spec: ConvSpec, gpu: Gpu) -> Staged:
    """The largest GEMM tile that fills `gpu`, is not mostly padding, and copies as `gpu` can.

    In chunks where V has more elements than cp.async reaches.
    """
    config = portable(spec)
    for tile, enough in LADDER:
        config = _fit(tile, spec, gpu)
        z = winograd.sizes(spec, config.tiling)
        if z.bp <= z.p and POINTS * z.kb * z.pb >= enough * gpu.sms:
            break
    ways = [replace(config, chunks=n) for n in range(1, _MOST_CHUNKS + 1)]
    return next((c for c in ways if illegal(c, spec, gpu) is None), portable(spec))


def configs(spec: ConvSpec, hw: Hardware) -> list[Staged]:
    """The legal configs worth trying, the default first."""
    assert isinstance(hw, Gpu)
    first = default(spec, hw)
    out = [first, replace(first, row=0 if first.row else 8), replace(first, threads=128, tiles=2)]
    out += [_fit(tile, spec, hw) for tile in (*(t for t, _ in LADDER), *_OTHERS)]
    out += [replace(first, patches=n) for n in (1, 2, 4)]
    out += [replace(first, tiles=n) for n in (1, 2, 4)]
    if first.copies == "async":
        out += [replace(first, buffers=n) for n in (3, 6)]
    pb = winograd.sizes(spec, first.tiling).pb
    out += [replace(first, chunks=n) for n in range(2, _MOST_CHUNKS + 1) if pb % n == 0]
    return [c for c in dict.fromkeys(out) if illegal(c, spec, hw) is None]


def _fit(tile: Staged, spec: ConvSpec, gpu: Gpu) -> Staged:
    """`tile` with the way of copying that `gpu` has and the way of storing that `spec` needs."""
    config = replace(tile, row=_row(spec))
    if spec.layout == "NHWC":
        config = replace(config, tiles=8 * config.bp // config.threads)  # 8 filters: 32 bytes
    return config if gpu.has_async_copy else replace(config, copies="registers", buffers=1)


def _row(spec: ConvSpec) -> int:
    """Rows of tiles that are no whole 16-byte vectors in memory go through shared memory.

    A power of two lets a map's rows follow each other. H200, 2026-11-30, the output transform:
    57 -> 29 us at (256, 14^2), 36 -> 15 us at (512, 7^2), batch 128.
    """
    if spec.layout == "NHWC":
        return 1
    if spec.layout == "CHWN" or spec.ow % 4 == 0:
        return 0
    cols = ceil_div(spec.ow, 4)
    return cols if cols in (1, 2, 4, 8) else 8


def seconds(config: Staged, spec: ConvSpec, gpu: Gpu) -> float:
    """Estimated time of the three kernels."""
    z = winograd.sizes(spec, config.tiling)
    loop = product_time.Product(
        blocks=POINTS * z.kb * z.pb,
        steps=z.c_pad // config.bc,
        threads=config.gemm_threads,
        tk=config.tk,
        tp=config.tp,
        bc=config.bc,
        copies=config.bc * (config.bk + config.bp),  # 4 instructions for 4 words
        step_bytes=4 * config.bc * (config.bk + config.bp),
        shared_bytes=4 * config.buffers * config.bc * (config.bk + config.bp),
        buffers=config.buffers,
    )
    v, m = (4 * POINTS * z.pb * z.bp * n for n in (z.c_pad, z.kb * z.bk))
    x, o = (4 * spec.n * n for n in (spec.c * spec.h * spec.w, spec.k * spec.oh * spec.ow))
    product = _MEASURED * product_time.clocks(loop, gpu) + product_time.LAUNCH_CLOCKS
    gemm = max(product / gpu.hertz, product_time.stream_seconds(v + m, gpu))
    transforms = product_time.stream_seconds(x + v, gpu) + product_time.stream_seconds(m + o, gpu)
    chunks = (config.chunks - 1) * 3 * product_time.LAUNCH_CLOCKS / gpu.hertz
    return gemm + transforms + chunks


def workspace(config: Staged, spec: ConvSpec) -> int:
    """Bytes of V and M."""
    z = winograd.sizes(spec, config.tiling)
    return 4 * POINTS * z.pb * z.bp * (z.c_pad + z.kb * z.bk) // config.chunks
