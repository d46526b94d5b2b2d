"""Whether a config can run a convolution on a GPU, and why not."""

from __future__ import annotations

from tvm_winograd.gpu import Gpu
from tvm_winograd.shapes import ConvSpec, Epilogue
from tvm_winograd.te import common

from ..base.legal import Needs, exceeds
from . import activation, sizes
from .config import STEP, TILES, TensorCore

SM90 = 90  # compute capability times 10: wgmma exists there and nowhere else
LEAST_GROUP = 32  # channels and filters of a group: a step and half of a tile's filters
_MOST_REACH = 1 << 14  # pixels: a place on the map, or in a window beside it, takes 16 bits


def supports(spec: ConvSpec, epilogue: Epilogue, gpu: Gpu) -> str | None:
    """None, or why no config can compute `spec` on `gpu`."""
    if gpu.cc != SM90:
        return f"wgmma exists on sm_90 only, got {gpu.arch}"
    if spec.dtype != "float32":
        return f"it splits float32 into two fp16, got {spec.dtype}"
    if spec.layout != "NHWC":
        return f"a step is 32 neighbouring channels: NHWC, got {spec.layout}"
    least = min(spec.k, spec.c) // spec.groups
    if spec.groups > 1 and least < LEAST_GROUP:
        return (
            f"a group of {least} filters or channels leaves most of a tile empty; "
            f"{LEAST_GROUP} are needed"
        )
    return activation.missing(epilogue.applied) or common.too_large(spec)


def needs(config: TensorCore, spec: ConvSpec) -> Needs:
    """What the product kernel takes of a GPU; setmaxnreg deals its registers."""
    return Needs(config.shared_bytes, config.threads)


def illegal(config: TensorCore, spec: ConvSpec, gpu: Gpu) -> str | None:
    """None, or why `config` cannot run `spec` on `gpu`."""
    reason = _malformed(config) or _bad_patch(config, spec) or _bad_shares(config, spec)
    return reason or exceeds(needs(config, spec), gpu) or _too_large(config, spec)


def _malformed(config: TensorCore) -> str | None:
    """None, or why the numbers of `config` do not fit each other, whatever it computes."""
    if (config.rows, config.filters) not in TILES:
        known = ", ".join(f"{rows}x{filters}" for rows, filters in TILES)
        return f"a tile of {config.rows}x{config.filters}: there are {known} (pixels x filters)"
    if config.promote not in (1, 2):
        return f"promote={config.promote}: 1 or 2 steps; later, truncated sums err too much"
    if config.stages < 2:
        return f"stages={config.stages}: 2 or more, to copy one while another is multiplied"
    if config.blocks < 1 or not 0 <= config.shares <= config.blocks:
        return f"blocks={config.blocks}, shares={config.shares}: 0 <= shares <= blocks"
    return None


def _bad_patch(config: TensorCore, spec: ConvSpec) -> str | None:
    """None, or why the input cannot be copied as patches."""
    if not config.patch:
        return None
    if config.patch < 0 or config.patch % 8:
        return f"patch={config.patch}: a multiple of 8 rows, so that each patch is aligned"
    if max(spec.strides) > 1:
        return f"a patch with stride {spec.stride} would hold pixels that no tap looks at"
    if sizes.group_channels(spec) % STEP:
        return f"a patch holds {STEP} channels; groups of {spec.c // spec.groups} are no multiple"
    if sizes.box(spec, config) is None:
        return f"patch={config.patch}: a window of one pixel is larger"
    return None


def _bad_shares(config: TensorCore, spec: ConvSpec) -> str | None:
    """None, or why the last tiles' steps cannot be divided into that many shares."""
    if not config.shares:
        return None
    shared = sizes.shared_tiles(spec, config)
    if not shared:
        return f"shares={config.shares}: the tiles are whole waves of {config.blocks}"
    if shared * sizes.steps(spec) < config.shares:
        return f"shares={config.shares} of {shared * sizes.steps(spec)} steps leave some empty"
    if shared * sizes.steps(spec) * (config.shares + 1) >= 2**31:
        return f"{shared * sizes.steps(spec)} steps in {config.shares} shares; 32 bits count them"
    return None


def _too_large(config: TensorCore, spec: ConvSpec) -> str | None:
    """None, or what 32-bit numbers do not reach."""
    if sum(sizes.weight_words(spec, config)) >= 2**31:
        return "the packed weights have 2^31 words or more"
    if sizes.tiles(spec, config) * max(sizes.steps(spec), config.pieces) >= 2**31:
        return "2^31 steps or more; they are counted in 32 bits"
    reach = max(spec.r, spec.s) * max(spec.dilations) + max(spec.padding) + max(spec.h, spec.w)
    if reach >= _MOST_REACH:
        return f"windows reach {reach} pixels from the map's corner; {_MOST_REACH} is the limit"
    return None
