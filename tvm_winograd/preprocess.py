"""An image or .npy file as a network input, by the preprocessing a manifest describes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .errors import InputError


def read_input(
    path: str | Path, shape: tuple[int, ...], preprocess: Mapping[str, Any] | None
) -> np.ndarray:
    """The file as a float32 array of `shape` (n, c, h, w); one image fills the whole batch.

    Args:
        path: .npy (shape or shape[1:], used as it is) or an image that Pillow reads.
        preprocess: {"resize", "crop", "mean", "std"}; an image needs it.
    Raises:
        InputError: a file that is missing, unreadable or of another shape.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"input file {path} does not exist")
    array = _read_npy(path) if path.suffix == ".npy" else _read_image(path, shape, preprocess)
    if array.shape == shape[1:]:
        array = np.broadcast_to(array, shape)
    if array.shape != shape:
        raise InputError(f"{path.name} has shape {array.shape}; needed is {shape} or {shape[1:]}")
    return np.ascontiguousarray(array, dtype="float32")


def _read_npy(path: Path) -> np.ndarray:
    try:
        array = np.load(path, allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise InputError(f"{path.name} is not a readable .npy array: {error}") from error
    if array.dtype != np.float32:
        raise InputError(f"{path.name} holds {array.dtype}; float32 is needed")
    return array


def _read_image(
    path: Path, shape: tuple[int, ...], preprocess: Mapping[str, Any] | None
) -> np.ndarray:
    """(c, h, w): shorter side resized, centre cropped, normalised per channel."""
    from PIL import Image, UnidentifiedImageError

    if preprocess is None:
        raise InputError(
            f"{path.name}: this model says nothing about images; pass a .npy array of shape {shape}"
        )
    try:
        with Image.open(path) as opened:
            image = opened.convert("RGB")
    except (UnidentifiedImageError, OSError) as error:
        raise InputError(f"{path.name} is neither .npy nor an image: {error}") from error
    resize, crop = int(preprocess["resize"]), int(preprocess["crop"])
    scale = resize / min(image.size)
    width, height = (max(crop, round(side * scale)) for side in image.size)
    image = image.resize((width, height), Image.Resampling.BILINEAR)
    left, top = (width - crop) // 2, (height - crop) // 2
    pixels = np.asarray(image.crop((left, top, left + crop, top + crop)), dtype="float32") / 255
    mean, std = (np.asarray(preprocess[k], dtype="float32") for k in ("mean", "std"))
    return ((pixels - mean) / std).transpose(2, 0, 1)
