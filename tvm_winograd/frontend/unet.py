"""A U-Net with relax.frontend.nn (Ronneberger et al., 2015): an encoder and a decoder whose levels
are joined by concatenation. Convolutions are padded and normalized, as is usual today."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tvm import relax
from tvm.relax.frontend import nn

from ..errors import ModelError
from .layers import BatchNorm2d, MaxPool2d, conv, emit


@dataclass(frozen=True)
class UNetConfig:
    """The shape of a U-Net."""

    widths: tuple[int, ...] = (64, 128, 256)  # channels per level; each halves the map
    num_classes: int = 2
    in_channels: int = 3
    image_size: int = 256  # height and width, pixels
    upsampling: str = "bilinear"  # or "nearest" (then a 3x3 convolution), "transposed" (2x2)

    def network(self) -> UNet:
        return UNet(self)


BUILTINS = {"unet": UNetConfig()}


class UNet(nn.Module):
    """The network of a UNetConfig: (n, c, h, w) to logits (n, classes, h, w)."""

    def __init__(self, config: UNetConfig) -> None:
        """Raises:
        ModelError: an image that cannot be halved often enough, an unknown upsampling.
        """
        super().__init__()
        widths, cell = config.widths, 2 ** (len(config.widths) - 1)
        if config.image_size % cell:
            raise ModelError(
                f"a U-Net of {len(widths)} levels on {config.image_size} pixels: a multiple of "
                f"{cell} is needed"
            )
        if config.upsampling not in UPSAMPLING:
            raise ModelError(
                f"upsampling={config.upsampling!r}: supported are {', '.join(UPSAMPLING)}"
            )
        pairs = list(pairwise(widths))  # (level's, deeper one's) channels
        self.pool = MaxPool2d(2, 2)
        self.encoder = nn.ModuleList(
            [_double(c, k) for c, k in [(config.in_channels, widths[0]), *pairs]]
        )
        self.up = nn.ModuleList([UPSAMPLING[config.upsampling](k, c) for c, k in pairs[::-1]])
        self.decoder = nn.ModuleList([_double(2 * c, c) for c, _ in pairs[::-1]])
        self.head = conv(widths[0], config.num_classes, 1, bias=True)

    def main(self, input: nn.Tensor) -> nn.Tensor:
        levels = [self.encoder[0](input)]
        for block in list(self.encoder)[1:]:
            levels.append(block(self.pool(levels[-1])))
        x = levels.pop()
        for up, block in zip(self.up, self.decoder, strict=True):
            x = block(nn.op.concat([levels.pop(), up(x)], dim=1))
        return self.head(x)


class ResizeConv(nn.Conv2D):
    """The map doubled by interpolation, then a 3x3 convolution."""

    def __init__(self, channels: int, out: int, **options: str) -> None:
        super().__init__(channels, out, 3, padding=1)
        self.options = options  # of relax.image.resize2d

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        size = tuple(2 * int(side) for side in x.shape[2:])
        larger = relax.op.image.resize2d(x._expr, size, layout="NCHW", **self.options)
        return super().forward(emit(larger, "resize"))


class ConvTranspose2x2(nn.Module):
    """The map doubled by a transposed 2x2 convolution of stride 2."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter((channels, out, 2, 2))
        self.bias = nn.Parameter((out,))

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        larger = emit(
            relax.op.nn.conv2d_transpose(x._expr, self.weight._expr, strides=(2, 2)), "transposed"
        )
        return nn.op.add(larger, nn.op.reshape(self.bias, (1, self.bias.shape[0], 1, 1)))


def _bilinear(channels: int, out: int) -> ResizeConv:
    options = {"method": "linear", "coordinate_transformation_mode": "half_pixel"}
    return ResizeConv(channels, out, **options)


def _nearest(channels: int, out: int) -> ResizeConv:
    options = {"method": "nearest_neighbor", "coordinate_transformation_mode": "asymmetric"}
    return ResizeConv(channels, out, **options, rounding_method="floor")


UPSAMPLING: dict[str, Callable[[int, int], Any]] = {
    "bilinear": _bilinear,
    "nearest": _nearest,
    "transposed": ConvTranspose2x2,
}


def _double(channels: int, out: int) -> nn.ModuleList:
    """Two 3x3 convolutions, each normalized and rectified."""
    first, second = conv(channels, out, 3), conv(out, out, 3)
    return nn.ModuleList([first, BatchNorm2d(out), nn.ReLU(), second, BatchNorm2d(out), nn.ReLU()])
