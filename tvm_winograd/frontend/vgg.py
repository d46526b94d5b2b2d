"""VGG with relax.frontend.nn and torchvision's parameter names (Simonyan and Zisserman, 2014):
3x3 convolutions with bias, no batch normalization, three dense layers."""

from __future__ import annotations

from dataclasses import dataclass

from tvm.relax.frontend import nn

from .layers import Dropout, MaxPool2d, average, conv


@dataclass(frozen=True)
class VGGConfig:
    """The shape of a VGG. The defaults are ImageNet's."""

    layers: tuple[int, ...]  # convolutions per stage; each stage ends with a 2x2 pooling
    num_classes: int = 1000
    in_channels: int = 3
    image_size: int = 224  # height and width, pixels
    widths: tuple[int, ...] = (64, 128, 256, 512, 512)  # channels of each stage
    pooled: int = 7  # height and width of the map before the dense layers
    hidden: int = 4096  # width of the dense layers

    def network(self) -> VGG:
        return VGG(self)


BUILTINS = {
    "vgg11": VGGConfig((1, 1, 2, 2, 2)),
    "vgg13": VGGConfig((2, 2, 2, 2, 2)),
    "vgg16": VGGConfig((2, 2, 3, 3, 3)),
    "vgg19": VGGConfig((2, 2, 4, 4, 4)),
}


class VGG(nn.Module):
    """The network of a VGGConfig; `main` is its forward function."""

    def __init__(self, config: VGGConfig) -> None:
        super().__init__()
        features: list[nn.Module] = []
        channels = config.in_channels
        for width, count in zip(config.widths, config.layers, strict=True):
            for _ in range(count):
                features += [conv(channels, width, 3, bias=True), nn.ReLU()]
                channels = width
            features.append(MaxPool2d(2, 2))
        self.features = nn.ModuleList(features)
        self.pooled = config.pooled
        self.classifier = nn.ModuleList(
            [
                nn.Linear(channels * config.pooled**2, config.hidden),
                nn.ReLU(),
                Dropout(),
                nn.Linear(config.hidden, config.hidden),
                nn.ReLU(),
                Dropout(),
                nn.Linear(config.hidden, config.num_classes),
            ]
        )

    def main(self, input: nn.Tensor) -> nn.Tensor:
        return self.classifier(average(self.features(input), self.pooled))
