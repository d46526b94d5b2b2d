"""What the matrix product kernels can compute, and which of their configs are legal."""

from __future__ import annotations

from tvm_winograd.gpu import Gpu
from tvm_winograd.shapes import ConvSpec, Epilogue
from tvm_winograd.te import gemm
from tvm_winograd.te.common import input_reach

from ..base import blocks
from ..base.legal import LONGEST_SUM, Needs, exceeds
from .config import Product

# Of the reduction, all in a thread of the second kernel at once; with 24, ptxas makes it spill.
MAX_PARTS = 16


def supports(spec: ConvSpec, epilogue: Epilogue, gpu: Gpu) -> str | None:
    """None, or why no config of implicit GEMM can compute `spec`."""
    if reason := gemm.applies(spec):
        return reason
    if (least := min(spec.k, spec.c) // spec.groups) < 4 and spec.groups > 1:
        return f"a group of {least} filters or channels leaves most of a tile empty; 4 are needed"
    return None


def copies_nothing_new(spec: ConvSpec) -> str | None:
    """None, or why im2col would be a plain copy."""
    if (spec.r, spec.s, spec.stride, max(spec.padding)) == (1, 1, 1, 0):
        return "im2col would copy the input of a 1x1 convolution as it is: use gemm"
    return None


def needs(config: Product, spec: ConvSpec) -> Needs:
    """What the product kernel takes of a GPU; the others take less."""
    registers = config.accumulators + config.tk + config.tp + _staged_registers(config) + 40
    copies = 'weights="async"' if config.weights == "async" else None
    return Needs(config.shared_bytes, config.threads, registers, copies)


def illegal(config: Product, spec: ConvSpec, gpu: Gpu) -> str | None:
    """None, or why `config` cannot run `spec` on `gpu`."""
    if reason := _malformed(config) or _bad_access(config, spec):
        return reason
    if reason := exceeds(needs(config, spec), gpu):
        return reason
    return _too_large(config, spec) or _bad_parts(config, spec)


def _malformed(config: Product) -> str | None:
    """None, or why the numbers of `config` do not fit each other, whatever it computes."""
    if reason := config.malformed_tile("bc", "buffers", "parts"):
        return reason
    if reason := config.malformed_lanes():
        return reason
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
