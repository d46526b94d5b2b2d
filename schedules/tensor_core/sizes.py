"""How a convolution's products and tiles are counted, for the kernel, its packing and estimates."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from functools import lru_cache
from math import prod

from tvm_winograd.shapes import ConvSpec
from tvm_winograd.te.common import ceil_div

from .config import STEP, VECTOR, TensorCore

_PEAK_ELEMENTS = 8192  # of an image that a block of the peaks' kernel reads, at least
_MOST_PEAKS = 16  # blocks an image; where images are few:
_MOST_PEAKS_OF_FEW, _FEW = 64, 8


@dataclass(frozen=True)
class Conv:
    """The fields of `Conv` in wgmma.cuh, in its order."""

    images: int
    height: int
    width: int
    channels: int
    out_height: int
    out_width: int
    filters: int
    taps_h: int
    taps_w: int
    stride_h: int
    stride_w: int
    pad_h: int
    pad_w: int
    dilation_h: int
    dilation_w: int
    groups: int
    peaks: int
    whole: int
    shares: int
    box_w: int
    box_h: int
    box_n: int

    def values(self) -> tuple[int, ...]:
        """All fields, as arguments of a call."""
        return astuple(self)


def conv_of(spec: ConvSpec, config: TensorCore, peaks: int) -> Conv:
    """The kernel's argument for `spec`; `peaks` values hold max|x| of an image."""
    top, left, _, _ = spec.padding
    return Conv(
        *(spec.n, spec.h, spec.w, channels(spec), spec.oh, spec.ow, spec.k),
        *(spec.r, spec.s, *spec.strides, top, left, *spec.dilations),
        *(spec.groups, peaks, whole_tiles(spec, config), config.shares),
        *(box(spec, config) or (0, 0, 0)),
    )


def group_channels(spec: ConvSpec) -> int:
    """Channels of a group as the kernel counts them: whole vectors."""
    return ceil_div(spec.c // spec.groups, VECTOR) * VECTOR


def run(spec: ConvSpec) -> int:
    """Channels of a tap that are counted before the next tap."""
    wide = group_channels(spec)
    return STEP if wide % STEP == 0 else wide


def channels(spec: ConvSpec) -> int:
    """Channels of the input as the kernel counts them."""
    return spec.groups * group_channels(spec)


def padded_shape(spec: ConvSpec) -> tuple[int, int, int, int] | None:
    """Shape of the input's copy with whole vectors of channels, NHWC; None: it has them."""
    wide = channels(spec)
    return None if wide == spec.c else (spec.n, spec.h, spec.w, wide)


def products(spec: ConvSpec) -> int:
    """Products of one output, those of padding channels included."""
    return spec.r * spec.s * group_channels(spec)


def steps(spec: ConvSpec) -> int:
    """Steps of a tile; the last may be partly padding."""
    return ceil_div(products(spec), STEP)


def columns(spec: ConvSpec, config: TensorCore) -> int:
    """Tiles side by side: those of each group's filters."""
    return spec.groups * ceil_div(spec.k // spec.groups, config.filters)


def tiles(spec: ConvSpec, config: TensorCore) -> int:
    """Tiles of the output."""
    if found := box(spec, config):
        return _boxes(spec, found) * columns(spec, config)
    return ceil_div(spec.n * spec.oh * spec.ow, config.rows) * columns(spec, config)


@lru_cache(maxsize=1024)
def box(spec: ConvSpec, config: TensorCore) -> tuple[int, int, int] | None:
    """(width, height, images) of a tile's output pixels where it has a patch; None: it has none.

    Of those whose patch has room the one with fewest tiles, then with the smallest patch.
    """
    if not config.patch:
        return None
    found = [
        (w, h, min(spec.n, config.rows // (w * h)))
        for w in range(1, min(spec.ow, config.rows) + 1)
        for h in range(1, min(spec.oh, config.rows // w) + 1)
    ]
    fitting = [one for one in found if patch_rows(spec, one) <= config.patch]
    return min(fitting, key=lambda b: (_boxes(spec, b), patch_rows(spec, b)), default=None)


def patch_rows(spec: ConvSpec, box: tuple[int, int, int]) -> int:
    """Pixels of the input that a box of output pixels looks at."""
    w, h, n = box
    down, across = spec.dilations
    return (w + (spec.s - 1) * across) * (h + (spec.r - 1) * down) * n


def _boxes(spec: ConvSpec, box: tuple[int, int, int]) -> int:
    w, h, n = box
    return ceil_div(spec.ow, w) * ceil_div(spec.oh, h) * ceil_div(spec.n, n)


def whole_tiles(spec: ConvSpec, config: TensorCore) -> int:
    """Tiles that one block computes alone: all, or whole waves of them."""
    count = tiles(spec, config)
    return count - count % config.blocks if config.shares else count


def shared_tiles(spec: ConvSpec, config: TensorCore) -> int:
    """Tiles whose steps several blocks share."""
    return tiles(spec, config) - whole_tiles(spec, config)


def grid(spec: ConvSpec, config: TensorCore) -> int:
    """Blocks of the launch."""
    return max(min(config.blocks, whole_tiles(spec, config)), config.shares)


def parts_words(spec: ConvSpec, config: TensorCore) -> int:
    """Words of the workspace of sums: the first and the last part of each share."""
    return 2 * config.shares * config.rows * config.filters


def peak_blocks(spec: ConvSpec) -> int:
    """Blocks of an image that each find the largest |x| of a part of it."""
    most = _MOST_PEAKS if spec.n > _FEW else _MOST_PEAKS_OF_FEW
    return min(most, ceil_div(spec.h * spec.w * spec.c, _PEAK_ELEMENTS))


def workspace_bytes(config: TensorCore, spec: ConvSpec) -> int:
    """Bytes of device memory beside the arguments: peaks, padded channels, parts of sums."""
    padded = padded_shape(spec)
    words = spec.n * peak_blocks(spec) + parts_words(spec, config)
    return 4 * (words + (prod(padded) if padded else 0))


def weight_words(spec: ConvSpec, config: TensorCore) -> tuple[int, int]:
    """(words of the blocks of B, words of the scales behind them) of the packed weights."""
    wide = columns(spec, config)
    return wide * steps(spec) * config.filters * STEP, wide * config.filters
