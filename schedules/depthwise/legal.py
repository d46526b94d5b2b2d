"""What the depthwise CUDA kernel can compute, and which of its configs are legal."""

from __future__ import annotations

from tvm_winograd.gpu import Gpu
from tvm_winograd.shapes import ConvSpec, Epilogue
from tvm_winograd.te import direct
from tvm_winograd.te.common import product

from ..base import blocks
from ..base.legal import LONGEST_SUM, Needs, exceeds
from .config import Depthwise

# Input elements under a thread's pixels that registers hold.
MOST_PATCH = 72
# Multiply-adds of a thread in straight line, for one channel of its group.
MOST_STRAIGHT = 1024
# Shared memory of a block, bytes: what needs no opt-in.
MOST_SHARED = 48 * 1024


def supports(spec: ConvSpec, epilogue: Epilogue, gpu: Gpu) -> str | None:
    """None, or why no config can compute `spec`."""
    if spec.groups == 1:
        return "the depthwise kernel needs groups, got 1"
    if (terms := spec.c // spec.groups * spec.r * spec.s) > LONGEST_SUM:
        return f"a running sum of {terms} products loses accuracy; at most {LONGEST_SUM}"
    return direct.applies(spec)


def needs(config: Depthwise, spec: ConvSpec) -> Needs:
    """What the kernel takes of a GPU; MOST_PATCH and MOST_STRAIGHT bound its registers."""
    return Needs(config.shared_for(spec))


def illegal(config: Depthwise, spec: ConvSpec, gpu: Gpu) -> str | None:
    """None, or why `config` cannot run `spec` on `gpu`."""
    for name in ("th", "tw", "tk"):
        if (value := getattr(config, name)) < 1:
            return f"{name}={value}: a positive integer is needed"
    if config.outputs == 1:
        return "th = tw = tk = 1: a thread needs two outputs or more"
    if config.threads % blocks.WARP or not 0 < config.threads <= 1024:
        return f"threads={config.threads}: whole warps, at most 1024, are needed"
    if reason := direct.illegal(spec, config.tiling):
        return reason
    if config.patch and (size := config.patch_size(spec)) > MOST_PATCH:
        return f"{size} elements under a thread's pixels; registers hold {MOST_PATCH}"
    if (straight := config.outputs * (spec.r * spec.s if config.patch else 1)) > MOST_STRAIGHT:
        return f"{straight} multiply-adds in straight line; at most {MOST_STRAIGHT}"
    reason = _bad_channels(config, spec) if config.channels else None
    return reason or exceeds(needs(config, spec), gpu)


def _bad_channels(config: Depthwise, spec: ConvSpec) -> str | None:
    if config.channels < 0 or not config.patch:
        return f"channels={config.channels}: a positive integer, and patch=True, are needed"
    if spec.layout != "NCHW" or not spec.c == spec.k == spec.groups:
        return "channels: only NCHW with one filter a channel goes through shared memory"
    if spec.c % config.channels:
        return f"channels={config.channels} must divide c={spec.c}"
    if (bytes_ := config.shared_for(spec)) > MOST_SHARED:
        return f"{bytes_} bytes of shared memory; at most {MOST_SHARED}"
    if (threads := config.channels * product(config.grid(spec)[2:])) > 1024:
        return f"{threads} threads a block; at most 1024"
    return None
