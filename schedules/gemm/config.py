"""The config of the matrix product kernels: sizes, what they need, and whether they are legal."""

from __future__ import annotations

from dataclasses import dataclass

from tvm_winograd.gpu import Gpu, Hardware
from tvm_winograd.shapes import ConvSpec
from tvm_winograd.te import gemm
from tvm_winograd.te.common import input_reach

from ..base import blocks
from ..base.register_tile import RegisterTile

# Words behind a product of B in shared memory, so that lanes along channels (NHWC), which write
# 4 pixels each, meet different banks.
ROW_PAD = 4
# Of the reduction, all in a thread of the second kernel at once; with 24, ptxas makes it spill.
MAX_PARTS = 16
# Products in one running sum of float32: 9.0e-7 from float64, 4,608 (512 channels, 3x3) 1.2e-6.
LONGEST_SUM = 2560

_INPUTS = ("async16", "async4", "registers")
_STORES = ("pixels", "filters", "words")


@dataclass(frozen=True)
class Product(RegisterTile):
    """Sizes of one block and one thread, and how data moves: what both configs have."""

    bk: int = 64  # filters a block
    bp: int = 64  # output pixels a block
    bc: int = 8  # products a step
    tk: int = 8  # filters a thread
    tp: int = 8  # output pixels a thread
    # What the lane bits count, high to low: (k) filters, (p) pixels; the warps of a block share
    # the rest. A's address ignores the p bits, B's the k bits: with bit 0 a p and bit 1 a k a
    # 16-byte shared load takes two wavefronts instead of four.
    lanes: str = "pkpkp"
    weights: str = "async"  # how A reaches shared memory: "async" (cp.async) or "registers"
    # How B does: "async16" (cp.async of 4 neighbouring pixels), "async4" (of one word, zero
    # outside the map), "registers" (any dtype), or "workspace" (like A, behind im2col).
    inputs: str = "async4"
    buffers: int = 4  # of a step in shared memory; 2 with inputs, 1 with weights in registers
    # What a thread's 16-byte store holds: "pixels" (NCHW, CHWN), "filters" (NHWC); or "words".
    store: str = "words"
    # The reduction counts (c, r, s), so that a step's taps are constants if r * s (or s) divides
    # bc; else (r, s, c), where a step is one tap, its address and its guard the same for all c.
    taps_inner: bool = False
    parts: int = 1  # of the reduction, on blockIdx.y; a second kernel sums them

    @property
    def threads(self) -> int:
        return self.lane_k * self.lane_p

    @property
    def warps(self) -> int:
        return self.threads // blocks.WARP

    @property
    def shared_bytes(self) -> int:
        """Of the product kernel; NHWC's, the others' rows of B have no padding."""
        of_b = 1 if self.inputs == "registers" else self.buffers
        return 4 * self.bc * (self.buffers * self.bk + of_b * (self.bp + ROW_PAD))

    @property
    def tiling(self) -> gemm.Tiling:
        k_tile, p_tile = (self.tk // 4, self.lane_k, 4), (self.tp // 4, self.lane_p, 4)
        vector = self.store == "pixels"
        return gemm.Tiling(k_tile, p_tile, self.bc, self.parts, self.taps_inner, vector)


@dataclass(frozen=True)
class Implicit(Product):
    """B is gathered from the input by the blocks that multiply it."""


@dataclass(frozen=True)
class Im2col(Product):
    """B is gathered into device memory by a kernel of its own."""

    inputs: str = "workspace"


def illegal(config: Product, spec: ConvSpec, hw: Hardware) -> str | None:
    """None, or why `config` cannot run `spec` on `hw`."""
    if not isinstance(hw, Gpu):
        return f"a CUDA kernel, got a {hw.kind} target"
    if reason := _malformed(config) or _bad_access(config, spec):
        return reason
    if config.weights == "async" and not hw.has_async_copy:
        return f'weights="async" needs cp.async (sm_80 or newer), got {hw.arch}'
    if config.shared_bytes > hw.shared_per_block:
        return f"{config.shared_bytes} bytes of shared memory; {hw.arch} has {hw.shared_per_block}"
    needed = config.accumulators + config.tk + config.tp + _staged_registers(config) + 40
    available = min(hw.max_registers, hw.registers_per_sm // config.threads)
    if needed > available:
        return f"about {needed} registers; {config.threads} threads may have {available} each"
    return _too_large(config, spec) or _bad_parts(config, spec)


def _malformed(config: Product) -> str | None:
    """None, or why the numbers of `config` do not fit each other, whatever it computes."""
    if reason := config.malformed_tile("bc", "buffers", "parts"):
        return reason
    if reason := config.malformed_lanes():
        return reason
    if config.weights not in ("async", "registers"):
        return f'weights={config.weights!r}: "async" or "registers"'
    if config.store not in _STORES:
        return f"store={config.store!r}: one of {', '.join(_STORES)}"
    inputs = ("workspace",) if isinstance(config, Im2col) else _INPUTS
    if config.inputs not in inputs:
        return f"inputs={config.inputs!r}: {type(config).__name__} has {', '.join(inputs)}"
    return _bad_buffers(config)


def _bad_buffers(config: Product) -> str | None:
    if config.weights == "registers":
        if config.inputs.startswith("async"):
            return f'weights="registers" with inputs={config.inputs!r}: one pipeline holds one kind'
        wanted = config.buffers == 1
    else:
        wanted = config.buffers == 2 if config.inputs == "registers" else config.buffers > 1
    if not wanted:
        return (
            f"buffers={config.buffers} with weights={config.weights!r}, inputs={config.inputs!r}: "
            "1 with weights, 2 with inputs in registers, else 2 or more"
        )
    return _uneven(config)


def _uneven(config: Product) -> str | None:
    """What waits in registers must be the same for all threads, or it waits in local memory."""
    shares = []
    if config.weights == "registers":
        shares.append(config.bc * config.bk / 4)
    if "registers" in (config.weights, config.inputs):
        shares.append(config.bc * config.bp / (4 if config.inputs == "workspace" else 1))
    if any(share % config.threads for share in shares):
        return f"bc={config.bc}: {config.threads} threads cannot share a step through registers"
    return None


def _bad_access(config: Product, spec: ConvSpec) -> str | None:
    """None, or why the data of `spec` cannot move like that."""
    if config.inputs.startswith("async") and spec.dtype != "float32":
        return f"inputs={config.inputs!r}: cp.async cannot convert {spec.dtype} to {spec.acc}"
    if config.inputs == "registers" and spec.layout == "NHWC" and config.threads % (4 * config.bc):
        return f"bc={config.bc}: a thread of {config.threads} would gather several channels (NHWC)"
    if config.inputs == "async16" and not gemm.input_consecutive(spec):
        return 'inputs="async16": 4 pixels of this input are no aligned neighbours in memory'
    if config.inputs == "async16" and config.store != "pixels":
        return 'inputs="async16" needs store="pixels": both count pixels alike'
    if config.store == "pixels" and not gemm.consecutive(spec):
        return 'store="pixels": 4 pixels of this output are no aligned neighbours in memory'
    if config.store == "filters" and (spec.layout != "NHWC" or spec.k // spec.groups % 4):
        return 'store="filters" needs NHWC and a multiple of 4 filters a group'
    return None


def _too_large(config: Product, spec: ConvSpec) -> str | None:
    z = gemm.sizes(spec, config.tiling)
    if spec.groups * config.parts > 65535:
        return f"{spec.groups} groups x {config.parts} parts; a grid has at most 65535"
    if z.kb * z.pb >= 2**31:
        return f"{z.kb} x {z.pb} blocks; a grid has at most 2^31"
    a, b = spec.groups * z.q * z.kb * z.bk, spec.groups * z.q * z.pb * z.bp
    source = b if config.inputs == "workspace" else input_reach(spec)
    m = spec.groups * config.parts * z.kb * z.bk * z.pb * z.bp  # the output's padding included
    copied = 0
    if config.weights == "async":
        copied = a if config.inputs == "registers" else max(a, source)
    return blocks.too_large(max(a, source, m), copied)


def _bad_parts(config: Product, spec: ConvSpec) -> str | None:
    if config.parts > MAX_PARTS:
        return f"parts={config.parts}: a thread sums at most {MAX_PARTS}"
    z = gemm.sizes(spec, config.tiling)
    if (length := z.q // config.parts) > LONGEST_SUM and spec.acc == "float32":
        return f"one sum of {length} products errs too much: {LONGEST_SUM} a part at most"
    if (config.parts - 1) * length >= z.q_real:
        return f"parts={config.parts}: {z.q_real} products in steps of {config.bc} leave one empty"
    return None


def _staged_registers(config: Product) -> int:
    """A step's share of A and B on its way through a thread's registers."""
    words = config.bc * config.bk if config.weights == "registers" else 0
    if config.weights == "registers" or config.inputs == "registers":
        words += config.bc * config.bp
    return -(-words // config.threads)
