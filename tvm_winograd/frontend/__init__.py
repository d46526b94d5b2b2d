"""Models in: `load_model` reads a built-in network, an .onnx or a .pt2 file into a `Model`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..deploy.manifest import sha256
from ..errors import ModelError
from ..ir.lock import COMPILING
from .model import Model, TensorSpec

__all__ = ["Model", "TensorSpec", "load_model"]


def load_model(
    model: Any,
    *,
    batch: int | None = None,
    weights: str | Path | None = None,
    seed: int = 0,
    trust: bool = False,
    input_shapes: Mapping[str, Any] | None = None,
) -> Model:
    """A float32 Model with static shapes.

    Args:
        model: a built-in name (`builtin.BUILTINS`: "resnet18", "vgg16", ...), the path of an .onnx
            or .pt2 file, a torch ExportedProgram, or a Model.
        batch: images per run; 1 for built-ins and the file's own otherwise.
        weights: .safetensors or .npz with exactly the model's parameter names.
        seed: of a built-in's weights when no file is given.
        input_shapes: input name -> shape, or name of a dynamic size -> size, for those that a file
            leaves open beside the batch.
        trust: a .pt2 file may hold pickles and code, which torch then runs.
    Raises:
        ModelError: a model or weights file that cannot be read, understood or given this batch.
    """
    if batch is not None and (type(batch) is not int or batch < 1):
        raise ModelError(f"batch={batch!r}: a positive number of images is needed")
    with COMPILING:
        path = Path(weights) if weights is not None else None
        return _load(model, batch, path, seed, trust, input_shapes or {})


def _load(
    model: Any,
    batch: int | None,
    path: Path | None,
    seed: int,
    trust: bool,
    given: Mapping[str, Any],
) -> Model:
    if isinstance(model, str | Path):
        return _load_named(str(model), batch, path, seed, trust, given)
    if isinstance(model, Model):
        loaded = model.at_batch(batch) if batch else model
    elif type(model).__name__ == "ExportedProgram":
        from .torch_export import from_exported

        loaded = from_exported(model, batch, given=given)
    else:
        raise ModelError(
            f"a {type(model).__name__} is no model; supported are a built-in name, the path of an "
            ".onnx or .pt2 file, a torch ExportedProgram, a Model"
        )
    return _with_weights(loaded, path) if path else loaded


def _load_named(
    name: str,
    batch: int | None,
    weights: Path | None,
    seed: int,
    trust: bool,
    given: Mapping[str, Any],
) -> Model:
    from . import builtin

    if name in builtin.BUILTINS:
        if given:
            raise ModelError(f"input_shapes={dict(given)}: {name} has no dynamic size")
        return builtin.load(name, batch or 1, weights, seed)
    path = Path(name)
    if path.suffix not in (".onnx", ".pt2"):
        raise ModelError(
            f"model {name!r}: supported are {', '.join(builtin.BUILTINS)}, and .onnx and .pt2 files"
        )
    if not path.is_file():
        raise ModelError(f"model file {name} does not exist")
    if path.suffix == ".onnx":
        from .onnx import load_onnx

        loaded = load_onnx(path, batch, given)
    else:
        from .torch_export import load_pt2

        loaded = load_pt2(path, batch, trust, given)
    return _with_weights(loaded, weights) if weights else loaded


def _with_weights(model: Model, path: Path) -> Model:
    """`model` with the values of a weights file."""
    from .weights import load_weights

    params = load_weights(path, {name: a.shape for name, a in model.params.items()})
    source = {**model.source, "weights": {"file": path.name, "sha256": sha256(path)}}
    return replace(model, params=params, source=source)
