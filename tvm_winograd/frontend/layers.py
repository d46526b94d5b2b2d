"""What the built-in networks are made of: relax.frontend.nn modules, torch's parameter names."""

from __future__ import annotations

from typing import Any, Protocol

from tvm import relax
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn.core import wrap_nested

INPUT = "input"


class NetworkConfig(Protocol):
    """The shape of a built-in network: a frozen dataclass per family."""

    @property
    def in_channels(self) -> int:
        """Channels of an image."""

    @property
    def image_size(self) -> int:
        """Height and width of an image, pixels."""

    def network(self) -> nn.Module:
        """The network; its method `main` takes the images."""


def build(config: NetworkConfig, batch: int) -> tuple[Any, dict[str, tuple[int, ...]]]:
    """The relax module of `config`, and its parameters' shapes in order."""
    network = config.network()
    network.to("float32")
    shape = (batch, config.in_channels, config.image_size, config.image_size)
    spec = {"main": {INPUT: nn.spec.Tensor(shape, "float32")}}
    mod, named = network.export_tvm(spec=spec)
    return mod, {name: tuple(int(dim) for dim in p.shape) for name, p in named}


class BatchNorm2d(nn.Module):
    """Inference batch normalization over axis 1."""

    def __init__(self, channels: int, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter((channels,))
        self.bias = nn.Parameter((channels,))
        self.running_mean = nn.Parameter((channels,))
        self.running_var = nn.Parameter((channels,))
        self.epsilon = epsilon

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        parameters = (self.weight, self.bias, self.running_mean, self.running_var)
        normalized = relax.op.nn.batch_norm(
            x._expr, *(p._expr for p in parameters), axis=1, epsilon=self.epsilon, training=False
        )
        return emit(relax.TupleGetItem(normalized, 0), "batch_norm")


class MaxPool2d(nn.Module):
    """Maximum over windows of size x size."""

    def __init__(self, size: int, stride: int, padding: int = 0) -> None:
        super().__init__()
        self.size, self.stride, self.padding = size, stride, padding

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        size, stride, padding = ((v, v) for v in (self.size, self.stride, self.padding))
        return emit(relax.op.nn.max_pool2d(x._expr, size, stride, padding), "maxpool")


class Dropout(nn.Module):
    """Nothing, when a network is not trained; torchvision counts it among a list's modules."""

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        return x


def conv(
    channels: int, out: int, size: int, stride: int = 1, *, groups: int = 1, bias: bool = False
) -> nn.Conv2D:
    """A convolution that keeps the map's size, divided by its stride."""
    return nn.Conv2D(channels, out, size, stride, size // 2, groups=groups, bias=bias)


def average(x: nn.Tensor, size: int = 1) -> nn.Tensor:
    """Adaptive average pooling to size x size, flattened: (n, c * size * size)."""
    x = emit(relax.op.nn.adaptive_avg_pool2d(x._expr, (size, size)), "avgpool")
    return nn.op.reshape(x, (x.shape[0], x.shape[1] * size * size))


def emit(expr: Any, name: str) -> nn.Tensor:
    """A relax operator, which relax.frontend.nn does not have, as its tensor."""
    return wrap_nested(expr, name)
