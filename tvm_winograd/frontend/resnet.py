"""ResNets with relax.frontend.nn and torchvision's parameter names (He et al., 2015; the 3x3 of a
bottleneck carries the stride, as in torchvision)."""

from __future__ import annotations

from dataclasses import dataclass

from tvm.relax.frontend import nn

from .layers import BatchNorm2d, MaxPool2d, average, conv


@dataclass(frozen=True)
class ResNetConfig:
    """The shape of a ResNet. The defaults are ImageNet's."""

    block: str  # "basic" or "bottleneck"
    layers: tuple[int, ...]  # blocks per stage
    num_classes: int = 1000
    in_channels: int = 3
    image_size: int = 224  # height and width, pixels
    widths: tuple[int, ...] = (64, 128, 256, 512)  # channels of each stage's 3x3 convolutions
    small_stem: bool = False  # 3x3 stride 1 without pooling, for images of 8 to 64 pixels

    def network(self) -> ResNet:
        return ResNet(self)


BUILTINS = {
    "resnet18": ResNetConfig("basic", (2, 2, 2, 2)),
    "resnet34": ResNetConfig("basic", (3, 4, 6, 3)),
    "resnet50": ResNetConfig("bottleneck", (3, 4, 6, 3)),
    "resnet101": ResNetConfig("bottleneck", (3, 4, 23, 3)),
    "resnet152": ResNetConfig("bottleneck", (3, 8, 36, 3)),
}


class ResNet(nn.Module):
    """The network of a ResNetConfig; `main` is its forward function."""

    def __init__(self, config: ResNetConfig) -> None:
        super().__init__()
        stem = config.widths[0]
        self.small_stem = config.small_stem
        self.conv1 = conv(config.in_channels, stem, *((3, 1) if config.small_stem else (7, 2)))
        self.bn1 = BatchNorm2d(stem)
        block: type[BasicBlock] | type[Bottleneck]
        block = Bottleneck if config.block == "bottleneck" else BasicBlock
        channels = stem
        for stage, (width, count) in enumerate(zip(config.widths, config.layers, strict=True)):
            blocks = []
            for index in range(count):
                stride = 2 if stage > 0 and index == 0 else 1
                blocks.append(block(channels, width, stride))
                channels = width * block.expansion
            setattr(self, f"layer{stage + 1}", nn.ModuleList(blocks))
        self.stages = len(config.layers)
        self.fc = nn.Linear(channels, config.num_classes)

    def main(self, input: nn.Tensor) -> nn.Tensor:
        x = nn.op.relu(self.bn1(self.conv1(input)))
        if not self.small_stem:
            x = MaxPool2d(3, 2, 1)(x)
        for stage in range(self.stages):
            x = getattr(self, f"layer{stage + 1}")(x)
        return self.fc(average(x))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions (ResNet-18, 34)."""

    expansion = 1

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = conv(channels, width, 3, stride)
        self.bn1 = BatchNorm2d(width)
        self.conv2 = conv(width, width, 3)
        self.bn2 = BatchNorm2d(width)
        self.downsample = _downsample(channels, width, stride)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        y = nn.op.relu(self.bn1(self.conv1(x)))
        return _join(self.bn2(self.conv2(y)), self.downsample, x)


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 convolutions (ResNet-50, 101, 152)."""

    expansion = 4

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = self.expansion * width
        self.conv1 = conv(channels, width, 1)
        self.bn1 = BatchNorm2d(width)
        self.conv2 = conv(width, width, 3, stride)
        self.bn2 = BatchNorm2d(width)
        self.conv3 = conv(width, out, 1)
        self.bn3 = BatchNorm2d(out)
        self.downsample = _downsample(channels, out, stride)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        y = nn.op.relu(self.bn1(self.conv1(x)))
        y = nn.op.relu(self.bn2(self.conv2(y)))
        return _join(self.bn3(self.conv3(y)), self.downsample, x)


def _downsample(channels: int, out: int, stride: int) -> nn.ModuleList | None:
    if stride == 1 and channels == out:
        return None
    return nn.ModuleList([conv(channels, out, 1, stride), BatchNorm2d(out)])


def _join(y: nn.Tensor, downsample: nn.ModuleList | None, x: nn.Tensor) -> nn.Tensor:
    """relu(y + shortcut). The shortcut is emitted after y: fusion gives the addition to the
    convolution emitted first, which must be the main branch's."""
    shortcut = x if downsample is None else downsample(x)
    return nn.op.relu(nn.op.add(y, shortcut))
