"""MobileNetV2 with relax.frontend.nn and torchvision's parameter names (Sandler et al., 2018):
inverted residuals, depthwise 3x3 convolutions, ReLU6."""

from __future__ import annotations

from dataclasses import dataclass

from tvm.relax.frontend import nn

from .layers import BatchNorm2d, Dropout, average, conv


@dataclass(frozen=True)
class MobileNetV2Config:
    """The shape of a MobileNetV2. The defaults are ImageNet's."""

    # (expansion, channels, blocks, stride of the first) of each stage: table 2 of the paper
    stages: tuple[tuple[int, int, int, int], ...] = (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    )
    num_classes: int = 1000
    in_channels: int = 3
    image_size: int = 224  # height and width, pixels
    stem: int = 32  # channels of the first convolution
    last: int = 1280  # channels before the classifier

    def network(self) -> MobileNetV2:
        return MobileNetV2(self)


BUILTINS = {"mobilenetv2": MobileNetV2Config()}


class MobileNetV2(nn.Module):
    """The network of a MobileNetV2Config; `main` is its forward function."""

    def __init__(self, config: MobileNetV2Config) -> None:
        super().__init__()
        features: list[nn.Module] = [_conv_norm_relu6(config.in_channels, config.stem, 3, 2)]
        channels = config.stem
        for expansion, width, count, first in config.stages:
            for index in range(count):
                stride = first if index == 0 else 1
                features.append(InvertedResidual(channels, width, stride, expansion))
                channels = width
        features.append(_conv_norm_relu6(channels, config.last, 1))
        self.features = nn.ModuleList(features)
        self.classifier = nn.ModuleList([Dropout(), nn.Linear(config.last, config.num_classes)])

    def main(self, input: nn.Tensor) -> nn.Tensor:
        return self.classifier(average(self.features(input)))


class InvertedResidual(nn.Module):
    """1x1 to more channels, depthwise 3x3, 1x1 back; the input is added where the shape stays."""

    def __init__(self, channels: int, width: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = expansion * channels
        chain: list[nn.Module] = []
        if expansion != 1:
            chain.append(_conv_norm_relu6(channels, inner, 1))
        chain.append(_conv_norm_relu6(inner, inner, 3, stride, groups=inner))
        chain += [conv(inner, width, 1), BatchNorm2d(width)]
        self.conv = nn.ModuleList(chain)
        self.adds_input = stride == 1 and channels == width

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        y = self.conv(x)
        return nn.op.add(y, x) if self.adds_input else y


class ReLU6(nn.Module):
    """min(max(x, 0), 6)"""

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        return nn.op.relu6(x)


def _conv_norm_relu6(
    channels: int, out: int, size: int, stride: int = 1, groups: int = 1
) -> nn.ModuleList:
    convolution = conv(channels, out, size, stride, groups=groups)
    return nn.ModuleList([convolution, BatchNorm2d(out), ReLU6()])
