"""Plain torch networks of the built-in families, with the same parameter names (torchvision's)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import nn

from tvm_winograd.frontend.layers import NetworkConfig
from tvm_winograd.frontend.mobilenet import MobileNetV2Config
from tvm_winograd.frontend.resnet import ResNetConfig
from tvm_winograd.frontend.unet import UNetConfig
from tvm_winograd.frontend.vgg import VGGConfig

from .torch_resnet import TorchResNet


class TorchVGG(nn.Module):
    """The network of a VGGConfig: (n, c, h, w) to logits (n, classes)."""

    def __init__(self, config: VGGConfig) -> None:
        super().__init__()
        features, channels = [], config.in_channels
        for width, count in zip(config.widths, config.layers, strict=True):
            for _ in range(count):
                features += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
                channels = width
            features.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*features)
        self.avgpool = nn.AdaptiveAvgPool2d(config.pooled)
        dense, wide = channels * config.pooled**2, config.hidden
        self.classifier = nn.Sequential(
            nn.Linear(dense, wide), nn.ReLU(), nn.Dropout(),
            nn.Linear(wide, wide), nn.ReLU(), nn.Dropout(),
            nn.Linear(wide, config.num_classes),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))


class TorchMobileNetV2(nn.Module):
    """The network of a MobileNetV2Config: (n, c, h, w) to logits (n, classes)."""

    def __init__(self, config: MobileNetV2Config) -> None:
        super().__init__()
        features = [_norm_relu6(config.in_channels, config.stem, 3, 2)]
        channels = config.stem
        for expansion, width, count, first in config.stages:
            for index in range(count):
                stride = first if index == 0 else 1
                features.append(InvertedResidual(channels, width, stride, expansion))
                channels = width
        features.append(_norm_relu6(channels, config.last, 1))
        self.features = nn.Sequential(*features)
        self.classifier = nn.Sequential(nn.Dropout(), nn.Linear(config.last, config.num_classes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.features(x).mean((2, 3)))


class InvertedResidual(nn.Module):
    """Wider by a 1x1 convolution, depthwise 3x3, narrower again; MobileNetV2's block."""

    def __init__(self, channels: int, width: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = expansion * channels
        grow = [_norm_relu6(channels, inner, 1)] if expansion != 1 else []
        depthwise = _norm_relu6(inner, inner, 3, stride, inner)
        shrink = [nn.Conv2d(inner, width, 1, bias=False), nn.BatchNorm2d(width)]
        self.conv = nn.Sequential(*grow, depthwise, *shrink)
        self.residual = stride == 1 and channels == width

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.conv(x) if self.residual else self.conv(x)


class TorchUNet(nn.Module):
    """The network of a UNetConfig: (n, c, h, w) to logits (n, classes, h, w)."""

    def __init__(self, config: UNetConfig) -> None:
        super().__init__()
        widths, kind = config.widths, config.upsampling
        pairs = list(pairwise(widths))
        encoder = [(config.in_channels, widths[0]), *pairs]
        self.encoder = nn.ModuleList([_double(c, k) for c, k in encoder])
        self.resize = nn.Identity() if kind == "transposed" else nn.Upsample(None, 2, kind)
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(k, c, 2, 2) if kind == "transposed" else nn.Conv2d(k, c, 3, 1, 1)
            for c, k in pairs[::-1]
        )
        self.decoder = nn.ModuleList([_double(2 * c, c) for c, _ in pairs[::-1]])
        self.head = nn.Conv2d(widths[0], config.num_classes, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept: list[torch.Tensor] = []
        for block in self.encoder:
            x = block(nn.functional.max_pool2d(x, 2) if kept else x)
            kept.append(x)
        kept.pop()
        for up, block in zip(self.up, self.decoder, strict=True):
            x = block(torch.cat([kept.pop(), up(self.resize(x))], 1))
        return self.head(x)


_NETWORKS: dict[type, Callable[[Any], nn.Module]] = {
    ResNetConfig: TorchResNet,
    VGGConfig: TorchVGG,
    MobileNetV2Config: TorchMobileNetV2,
    UNetConfig: TorchUNet,
}


def torch_network(config: NetworkConfig, params: Mapping[str, np.ndarray]) -> nn.Module:
    """Makes the network of a built-in's configuration in evaluation mode, on the CPU.

    Args:
        params: of a Model of that configuration.
    """
    net = _NETWORKS[type(config)](config)
    state = {name: torch.from_numpy(array) for name, array in params.items()}
    counters = {n: t for n, t in net.state_dict().items() if n.endswith("num_batches_tracked")}
    net.load_state_dict({**counters, **state})
    return net.eval()


def _norm_relu6(c: int, k: int, size: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(c, k, size, stride, size // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(k), nn.ReLU6())


def _double(c: int, k: int) -> nn.Sequential:
    first, second = (nn.Conv2d(i, k, 3, padding=1, bias=False) for i in (c, k))
    return nn.Sequential(first, nn.BatchNorm2d(k), nn.ReLU(), second, nn.BatchNorm2d(k), nn.ReLU())
