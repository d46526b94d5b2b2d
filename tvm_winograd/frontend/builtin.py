"""The built-in networks: ResNet-18, 34, 50, 101, 152."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..manifest import sha256
from .model import Model, make_model
from .resnet import BUILTINS, ResNetConfig, build
from .weights import load_weights, seeded_weights

__all__ = ["BUILTINS", "load", "resnet_model"]

_CALIBRATION_IMAGES = 2
# torchvision's: shorter side to 256 pixels, centre crop 224, RGB in 0..1, then (x - mean) / std
IMAGENET = {
    "resize": 256,
    "crop": 224,
    "mean": [0.485, 0.456, 0.406],
    "std": [0.229, 0.224, 0.225],
}


def load(name: str, batch: int, weights: Path | None, seed: int) -> Model:
    """The built-in network `name`, with the weights of a file or of a seed."""
    return resnet_model(BUILTINS[name], name, batch, weights, seed, preprocess=IMAGENET)


def resnet_model(
    config: ResNetConfig,
    name: str = "resnet",
    batch: int = 1,
    weights: Path | None = None,
    seed: int = 0,
    preprocess: dict[str, Any] | None = None,
) -> Model:
    """A ResNet of any configuration as a Model."""
    mod, shapes = build(config, batch)
    source: dict[str, Any] = {"kind": "builtin", "name": name, "batch": batch}
    if weights is not None:
        params = load_weights(weights, shapes)
        source["weights"] = {"file": weights.name, "sha256": sha256(weights)}
    else:
        calibrated, _ = build(config, _CALIBRATION_IMAGES)
        params = seeded_weights(calibrated, shapes, seed)
        source["seed"] = seed
    return make_model(name, mod, params, source, preprocess)
