"""Plain torch ResNets with torchvision's parameter names, which needs no torchvision."""

from __future__ import annotations

import torch
from torch import nn

from tvm_winograd.frontend.resnet import ResNetConfig


class TorchResNet(nn.Module):
    """The network of a ResNetConfig: (n, c, h, w) to logits (n, classes)."""

    def __init__(self, config: ResNetConfig) -> None:
        super().__init__()
        channels = config.widths[0]
        size, stride = (3, 1) if config.small_stem else (7, 2)
        self.conv1 = _conv(config.in_channels, channels, size, stride)
        self.bn1 = nn.BatchNorm2d(channels)
        self.pool = nn.Identity() if config.small_stem else nn.MaxPool2d(3, 2, 1)
        block = Bottleneck if config.block == "bottleneck" else BasicBlock
        self.stages = len(config.layers)
        for i, (width, count) in enumerate(zip(config.widths, config.layers, strict=True)):
            blocks = []
            for j in range(count):
                blocks.append(block(channels, width, 2 if i > 0 and j == 0 else 1))
                channels = width * block.expansion
            setattr(self, f"layer{i + 1}", nn.Sequential(*blocks))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(channels, config.num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(torch.relu(self.bn1(self.conv1(x))))
        for i in range(self.stages):
            x = getattr(self, f"layer{i + 1}")(x)
        return self.fc(torch.flatten(self.avgpool(x), 1))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions."""

    expansion = 1

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = _conv(channels, width, 3, stride), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = _conv(width, width, 3), nn.BatchNorm2d(width)
        self.downsample = _downsample(channels, width, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(y)) + self.downsample(x))


class Bottleneck(nn.Module):
    """A 1x1, a 3x3 and a 1x1 convolution, the last four times as wide."""

    expansion = 4

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = self.expansion * width
        self.conv1, self.bn1 = _conv(channels, width, 1), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = _conv(width, width, 3, stride), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = _conv(width, out, 1), nn.BatchNorm2d(out)
        self.downsample = _downsample(channels, out, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.bn1(self.conv1(x)))
        y = torch.relu(self.bn2(self.conv2(y)))
        return torch.relu(self.bn3(self.conv3(y)) + self.downsample(x))


def _conv(channels: int, out: int, size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(channels, out, size, stride, size // 2, bias=False)


def _downsample(channels: int, out: int, stride: int) -> nn.Module:
    if stride == 1 and channels == out:
        return nn.Identity()
    return nn.Sequential(_conv(channels, out, 1, stride), nn.BatchNorm2d(out))
