"""The convolutions that are measured unless others are named: 3x3, stride 1, padding 1, float32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tvm_winograd.errors import InputError
from tvm_winograd.shapes import ConvSpec

# name -> ((c, k, map), ...), and the batches they are measured at
LAYERS = {
    # The four of all ResNets; with these batches, the sixteen that openCNN was published with.
    "resnet": ((64, 64, 56), (128, 128, 28), (256, 256, 14), (512, 512, 7)),
    # The distinct ones of VGG-16, from the image to the last map.
    "vgg": (
        (3, 64, 224), (64, 64, 224), (64, 128, 112), (128, 128, 112), (128, 256, 56),
        (256, 256, 56), (256, 512, 28), (512, 512, 28), (512, 512, 14),
    ),
}  # fmt: skip
BATCHES = {"resnet": (32, 64, 96, 128), "vgg": (32,)}


def named(name: str, batches: Sequence[int] = ()) -> list[ConvSpec]:
    """Lists the layers of a network at some batches (default: BATCHES), batch by batch.

    Raises:
        InputError: another name.
    """
    if name not in LAYERS:
        raise InputError(f"layers {name!r}: there are {', '.join(LAYERS)}")
    return [
        ConvSpec(n=n, c=c, h=size, w=size, k=k)
        for n in batches or BATCHES[name]
        for c, k, size in LAYERS[name]
    ]


def at_batches(specs: Sequence[ConvSpec], batches: Sequence[int]) -> list[ConvSpec]:
    """Lists the same convolutions at other batches; as they are if none is given."""
    return [replace(spec, n=n) for n in batches for spec in specs] if batches else list(specs)


def title(spec: ConvSpec) -> str:
    """Makes a short name for tables: `N128 C64 56x56`, with what is unusual behind it."""
    channels = f"C{spec.c}" if spec.c == spec.k else f"C{spec.c} K{spec.k}"
    usual = replace(spec, r=3, s=3, stride=1, padding=(1, 1, 1, 1), dilation=1, groups=1)
    rest = "" if spec == usual else " " + spec.key().split("_", 1)[1].rsplit("_", 2)[0]
    window = "" if (spec.r, spec.s) == (3, 3) else f" {spec.r}x{spec.s}"
    return f"N{spec.n} {channels} {spec.h}x{spec.w}{window}{rest}"
