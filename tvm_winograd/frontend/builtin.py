"""The built-in networks: each family's configurations by name."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from ..deploy.manifest import sha256
from . import mobilenet, resnet, unet, vgg
from .layers import NetworkConfig, build
from .model import Model, make_model
from .weights import load_weights, seeded_weights

__all__ = ["BUILTINS", "build", "builtin_model", "load"]

BUILTINS: dict[str, NetworkConfig] = {
    **resnet.BUILTINS,
    **vgg.BUILTINS,
    **mobilenet.BUILTINS,
    **unet.BUILTINS,
}
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
    config = BUILTINS[name]
    preprocess = {**IMAGENET, "crop": config.image_size}
    return builtin_model(config, name, batch, weights, seed, preprocess)


def builtin_model(
    config: NetworkConfig,
    name: str = "builtin",
    batch: int = 1,
    weights: Path | None = None,
    seed: int = 0,
    preprocess: dict[str, Any] | None = None,
) -> Model:
    """A network of any configuration as a Model."""
    mod, shapes = build(config, batch)
    source: dict[str, Any] = {"kind": "builtin", "name": name, "batch": batch}
    if weights is not None:
        params = load_weights(weights, shapes)
        source["weights"] = {"file": weights.name, "sha256": sha256(weights)}
    else:
        calibrated, _ = build(config, _CALIBRATION_IMAGES)
        params = seeded_weights(calibrated, shapes, seed)
        source["seed"] = seed
    return make_model(name, mod, params, source, preprocess, rebuild=partial(_module, config))


def _module(config: NetworkConfig, batch: int) -> Any:
    return build(config, batch)[0]
