"""Weights of a network: read from a file, or seeded with calibrated batch normalization."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ModelError
from ..truth.evaluate import evaluate

Shapes = Mapping[str, tuple[int, ...]]
_IGNORED = ".num_batches_tracked"  # torch's counter of training steps
_LISTED = 8  # names per kind in an error
_HEADER = 65_536  # bytes, more than any of a .npy file


def load_weights(path: Path, shapes: Shapes) -> dict[str, np.ndarray]:
    """The arrays named in `shapes`, from a .safetensors or .npz file that holds exactly these.

    Raises:
        ModelError: an unreadable file; missing, unexpected or misshapen arrays, all listed.
    """
    arrays = {n: a for n, a in _read(path, shapes).items() if not n.endswith(_IGNORED)}
    problems = [
        _listed("missing", [n for n in shapes if n not in arrays]),
        _listed("unexpected", [n for n in arrays if n not in shapes]),
        _listed(
            "of the wrong shape",
            [
                f"{n} {arrays[n].shape} instead of {shape}"
                for n, shape in shapes.items()
                if n in arrays and arrays[n].shape != shape
            ],
        ),
        _listed(
            "not float32",
            [f"{n} {a.dtype}" for n, a in arrays.items() if n in shapes and a.dtype != np.float32],
        ),
    ]
    if any(problems):
        raise ModelError(
            f"{path.name} does not fit the model: {'; '.join(filter(None, problems))}. "
            "The names must be exactly the model's (torchvision's for the built-in networks)"
        )
    return {name: np.ascontiguousarray(arrays[name]) for name in shapes}


def seeded_weights(mod: Any, shapes: Shapes, seed: int) -> dict[str, np.ndarray]:
    """Random weights under which activations neither die nor explode, the same everywhere.

    Batch norm scales and shifts are close to 1 and 0, the running statistics those of two random
    images. Weights are random (He et al., 2015): what a batch norm follows normal over its fan
    out, what has a bias of its own over its fan in, the classifier uniform.
    """
    rng = np.random.default_rng(seed)
    params = {name: _initial(rng, name, shapes) for name in shapes}
    return _calibrate(mod, params, rng) if any(map(_is_statistic, shapes)) else params


def random_images(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Zero-mean float32 images with structure at several scales, standard deviation 1."""
    n, c, h, w = shape
    total = np.zeros(shape)
    for cell in (1, 4, 16, 64):
        coarse = rng.standard_normal((n, c, -(-h // cell), -(-w // cell)))
        total += coarse.repeat(cell, axis=2).repeat(cell, axis=3)[:, :, :h, :w]
    total -= total.mean(axis=(1, 2, 3), keepdims=True)
    return (total / total.std()).astype("float32")


def random_input(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: str = "float32"
) -> np.ndarray:
    """Zero-mean float32 data for a network's input, images where the shape is that of maps; bytes
    of 0 to 255; 0 and 1 of other integers, which may be indices, and of truth values."""
    if dtype != "float32":
        return rng.integers(0, 256 if dtype == "uint8" else 2, shape).astype(dtype)
    if len(shape) == 4 and shape[2] * shape[3] > 1:
        return random_images(rng, shape)
    return np.asarray(rng.standard_normal(shape), "float32")


def _initial(rng: np.random.Generator, name: str, shapes: Shapes) -> np.ndarray:
    shape = shapes[name]
    if len(shape) > 1:
        values = _initial_weight(rng, name, shapes)
    elif name.endswith("running_var"):
        values = np.ones(shape)
    elif name.endswith("running_mean"):
        values = np.zeros(shape)
    elif name.endswith("bias"):
        values = rng.uniform(-0.2, 0.2, shape)
    else:  # batch norm scale
        values = rng.uniform(0.8, 1.2, shape)
    return values.astype("float32")


def _initial_weight(rng: np.random.Generator, name: str, shapes: Shapes) -> np.ndarray:
    """Of a convolution (k, c, r, s) or a dense layer (k, c)."""
    shape = shapes[name]
    if len(shape) == 2 and name == [n for n, s in shapes.items() if len(s) == 2][-1]:
        return rng.uniform(-1, 1, shape) / np.sqrt(shape[1])
    biased = name.removesuffix("weight") + "bias" in shapes
    fan = shape[1 if biased else 0] * math.prod(shape[2:])
    return rng.standard_normal(shape) * np.sqrt(2 / fan)


def _is_statistic(name: str) -> bool:
    return name.endswith("running_var")


def _calibrate(
    mod: Any, params: dict[str, np.ndarray], rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """`params` with running statistics taken from each batch norm's input.

    Every later batch norm sees inputs normalized with the rounded statistics of the earlier
    ones, so the last bits of this machine's float64 sums never reach the result.
    """
    params = dict(params)

    def on_batch_norm(
        names: tuple[str, ...], x: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray] | None:
        _, _, mean_name, var_name = names
        rows = x.reshape(-1, x.shape[-1])
        mean = rows.mean(axis=0)
        var = rows.var(axis=0)
        var = _round_bits(var, var)
        mean = _round_bits(mean, np.sqrt(var))
        params[mean_name], params[var_name] = mean.astype("float32"), var.astype("float32")
        return mean, var

    shape = [int(dim) for dim in mod["main"].params[0].ty.shape]
    images = random_images(rng, tuple(shape))
    evaluate(mod, dict(params), [images], on_batch_norm=on_batch_norm)
    return params


def _round_bits(values: np.ndarray, scale: np.ndarray, bits: int = 10) -> np.ndarray:
    """`values` to multiples of 2^-bits of the power of two below `scale`: exact in float32, and
    the same for sums that differ in the last bits of a float64."""
    step = np.exp2(np.floor(np.log2(np.maximum(scale, 1e-30))) - bits)
    return np.round(values / step) * step


def _read(path: Path, shapes: Shapes) -> dict[str, np.ndarray]:
    if not path.is_file():
        raise ModelError(f"weights file {path} does not exist")
    if path.suffix == ".safetensors":
        return _read_safetensors(path)
    if path.suffix == ".npz":
        return _read_npz(path, shapes)
    raise ModelError(f"weights file {path.name}: supported are .safetensors and .npz")


def _read_safetensors(path: Path) -> dict[str, np.ndarray]:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        return load_file(path)
    except SafetensorError as error:
        raise ModelError(f"{path.name} is not a readable .safetensors file: {error}") from error


def _read_npz(path: Path, shapes: Shapes) -> dict[str, np.ndarray]:
    """Every array of the archive. None is unpacked that is larger than the model's of its name: a
    few kilobytes of zip may hold gigabytes of zeros.

    Raises:
        ModelError: no archive of arrays, or such an array.
    """
    try:
        archive = np.load(path, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise ModelError(f"{path.name} is not a .npz file of arrays; write it with numpy.savez")
        with archive:
            _check_sizes(path, zipfile.ZipFile(path).infolist(), shapes)
            arrays = dict(archive)
    except ModelError:
        raise
    except Exception as error:  # of a damaged header numpy raises nearly anything
        raise ModelError(f"{path.name} is not a readable .npz file: {error}") from error
    if not arrays or not all(isinstance(a, np.ndarray) for a in arrays.values()):
        raise ModelError(f"{path.name} is not a .npz file of arrays; write it with numpy.savez")
    return arrays


def _check_sizes(path: Path, members: Sequence[Any], shapes: Shapes) -> None:
    for member in members:
        name = member.filename.removesuffix(".npy")
        most = _HEADER + 8 * math.prod(shapes.get(name, ()))
        if member.file_size > most:
            known = f"the model's {name!r} takes {most}" if name in shapes else "it has no such one"
            raise ModelError(
                f"{path.name} does not fit the model: {name!r} holds {member.file_size} bytes, "
                f"{known}"
            )


def _listed(kind: str, names: list[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f"{len(names)} {kind}: {', '.join(names[:_LISTED])}{more}"
