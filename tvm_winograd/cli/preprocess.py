"""An image or .npy file as a network input, by the preprocessing a manifest describes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..deploy.arguments import numpy_dtype
from ..deploy.batches import Batches
from ..errors import InputError


def read_input(
    path: str | Path,
    shape: tuple[int, ...],
    preprocess: Mapping[str, Any] | None,
    batches: Batches | None = None,
    *,
    dtype: str = "float32",
    say: Callable[[str], None] = lambda text: None,
) -> np.ndarray:
    """The file as an array of `shape`, (n, c, h, w) of an image; one image fills the whole batch.

    Args:
        path: .npy (shape or shape[1:]) or an image that Pillow reads.
        preprocess: {"resize", "crop", "mean", "std"}; an image needs it.
        batches: where the batch varies, what n may be; one image is the smallest batch then.
        dtype: of the model's input.  say: told if a file's is another.
    Raises:
        InputError: a file that is missing, unreadable or of another shape.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"input file {path} does not exist")
    if path.suffix == ".npy":
        array = _cast(_read_npy(path), dtype, path.name, say)
    else:
        array = _read_image(path, shape, preprocess)
    if batches and array.shape[1:] == shape[1:]:
        batches.bucket(array.shape[0])
        shape = array.shape
    elif batches:
        shape = (batches.low, *shape[1:])
    if array.shape == shape[1:]:
        array = np.broadcast_to(array, shape)
    if array.shape != shape:
        raise InputError(f"{path.name} has shape {array.shape}; needed is {shape} or {shape[1:]}")
    return np.ascontiguousarray(array, dtype=numpy_dtype(dtype))


def _cast(array: np.ndarray, dtype: str, name: str, say: Callable[[str], None]) -> np.ndarray:
    """The array in the model's dtype, said; numbers may be rounded, integers must stay."""
    wanted = numpy_dtype(dtype)
    if array.dtype == wanted:
        return array
    if array.dtype.kind not in "fiub":
        raise InputError(f"{name} holds {array.dtype}; {dtype} is needed")
    cast = array.astype(wanted)
    if wanted.kind != "f" and dtype != "bfloat16" and not np.array_equal(cast, array):
        raise InputError(f"{name} holds {array.dtype} that {dtype}, the model's, cannot hold")
    say(f"{name}: {array.dtype} converted to {dtype}, as the model takes it")
    return cast


def _read_npy(path: Path) -> np.ndarray:
    try:
        array = np.load(path, allow_pickle=False)
    # a damaged header makes numpy raise nearly anything: SyntaxError, TokenError, MemoryError
    except Exception as error:
        raise InputError(f"{path.name} is not a readable .npy array: {error}") from error
    if not isinstance(array, np.ndarray):
        raise InputError(f"{path.name} is a .npz archive; save the one array with numpy.save")
    return array


def _read_image(
    path: Path, shape: tuple[int, ...], preprocess: Mapping[str, Any] | None
) -> np.ndarray:
    """(c, h, w): shorter side resized, centre cropped, normalised per channel."""
    from PIL import Image

    if preprocess is None:
        raise InputError(
            f"{path.name}: this model says nothing about images; pass a .npy array of shape {shape}"
        )
    try:
        with Image.open(path) as opened:
            image = _rgb(opened, path.name)
    except InputError:
        raise
    # of a damaged file Pillow's decoders raise SyntaxError, struct.error, DecompressionBombError...
    except Exception as error:
        raise InputError(f"{path.name} is neither .npy nor an image: {error}") from error
    try:
        resize, crop = int(preprocess["resize"]), int(preprocess["crop"])
        mean, std = (np.asarray(preprocess[k], dtype="float32") for k in ("mean", "std"))
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"the artifact's preprocessing {preprocess} is no use: {error!r}"
        ) from error
    pixels = _cropped(image, resize, crop) / np.float32(255)
    return ((pixels - mean) / std).transpose(2, 0, 1)


def _cropped(image: Any, resize: int, crop: int) -> np.ndarray:
    """The centre, (crop, crop, 3), of the image resized to a shorter side of `resize`."""
    from PIL import Image

    scale = resize / min(image.size)
    sizes = [max(crop, round(side * scale)) for side in image.size]
    # the crop's own part only: the whole of a 10000x1 image would need gigabytes
    starts = [(size - crop) // 2 for size in sizes]
    ends = [start + crop for start in starts]
    units = [side / size for side, size in zip(image.size, sizes, strict=True)]
    left, top, right, bottom = (e * u for e, u in zip(starts + ends, units * 2, strict=True))
    image = image.resize((crop, crop), Image.Resampling.BILINEAR, (left, top, right, bottom))
    return np.asarray(image, dtype="float32")


def _rgb(image: Any, name: str) -> Any:
    """8-bit RGB. Pillow clips wider pixels instead of scaling them: 16 bits are scaled here."""
    from PIL import Image

    if image.mode.startswith("I;16"):
        image = Image.fromarray(np.rint(np.asarray(image) / 257).astype("uint8"))
    if image.mode in ("I", "F"):
        raise InputError(
            f"{name} has {image.mode} pixels (32 bits), whose range is unknown; save it with 8 or "
            "16 bits per channel"
        )
    return image.convert("RGB")
