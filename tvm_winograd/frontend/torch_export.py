"""torch.export programs (.pt2 files, or ExportedProgram objects) as Models."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ModelError, UnsupportedError
from .model import IMPORT_ERRORS, Model, file_source, make_model, tidy
from .torch_ops import convert_map


def load_pt2(path: Path, batch: int | None = None) -> Model:
    """The program of a .pt2 file written by torch.export.save."""
    torch = _torch()
    try:
        exported = torch.export.load(path)
    except (RuntimeError, ValueError, KeyError, OSError, zipfile.BadZipFile) as error:
        raise ModelError(
            f"{path.name} is not a program that torch {torch.__version__} can load: {error}; write "
            "it with torch.export.save(torch.export.export(model.eval(), (example,)), path)"
        ) from error
    loaded = from_exported(exported, batch, path.stem)
    return replace(loaded, source={**file_source("torch.export", path), "batch": loaded.batch})


def from_exported(exported: Any, batch: int | None = None, name: str = "torch") -> Model:
    """A Model of an ExportedProgram; parameters and buffers keep their state dict names.

    Args:
        batch: needed if the batch was exported as dynamic (1 if None); else the exported one.
    Raises:
        ModelError: operators TVM's importer does not know, a batch the program cannot have,
            a model in training mode, a dtype other than float32.
    """
    from tvm.relax.frontend.torch import from_exported_program

    _torch()
    program, exported = exported, exported.run_decompositions()
    names = _buffers_as_parameters(exported)
    try:
        mod = from_exported_program(
            exported,
            keep_params_as_input=True,
            unwrap_unit_return_tuple=True,
            run_ep_decomposition=False,
            custom_convert_map=convert_map(),
        )
    except ModelError:
        raise
    except IMPORT_ERRORS as error:
        raise ModelError(f"TVM's torch.export importer refused {name!r}: {error}") from error
    mod = _bind_batch(mod, len(names), batch)
    state = {**exported.state_dict, **dict(exported.named_parameters())}
    arrays = {n: np.ascontiguousarray(state[n].detach().cpu().numpy()) for n in names}
    mod, params = tidy(mod, arrays)
    model = make_model(
        name,
        mod,
        params,
        {"kind": "torch.export", "batch": batch},
        rebuild=lambda other: from_exported(program, other, name).mod,
    )
    return replace(model, original=partial(_run, program))


def _run(program: Any, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The program's outputs, by torch on the CPU.

    Raises:
        UnsupportedError: it takes more than tensors, or tensors on a GPU.
    """
    import torch
    from torch.utils import _pytree

    spec = program.call_spec.in_spec
    if spec.num_leaves != len(inputs):
        raise UnsupportedError(f"it takes {spec.num_leaves} arguments, {len(inputs)} of them here")
    args, kwargs = _pytree.tree_unflatten([torch.from_numpy(x) for x in inputs], spec)
    try:
        with torch.no_grad():
            outputs = program.module()(*args, **kwargs)
    except (RuntimeError, ValueError, TypeError) as error:
        raise UnsupportedError(f"torch cannot run it: {error}") from error
    return [tensor.detach().numpy() for tensor in _pytree.tree_leaves(outputs)]


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise ModelError(
            "reading a torch.export program needs torch: pip install 'tvm-winograd[torch]'"
        ) from error
    return torch


def _buffers_as_parameters(exported: Any) -> list[str]:
    """Declare the saved buffers parameters, so that the importer leaves them as arguments too
    (it binds buffers as constants); the names of all parameters in argument order."""
    from torch.export.graph_signature import InputKind, InputSpec

    specs = exported.graph_signature.input_specs
    for i, spec in enumerate(specs):
        if spec.kind is InputKind.BUFFER and spec.target in exported.state_dict:
            specs[i] = InputSpec(InputKind.PARAMETER, spec.arg, spec.target)
    return [spec.target for spec in specs if spec.kind is InputKind.PARAMETER]


def _bind_batch(mod: Any, weights: int, batch: int | None) -> Any:
    """`mod` with a dynamic batch bound, and a fixed one checked."""
    from tvm import relax

    function = mod["main"]
    inputs = list(function.params)[: len(function.params) - weights]
    for attribute in ("params", "tir_var_lower_bound", "tir_var_upper_bound"):
        function = function.without_attr(attribute)
    symbols = _batch_symbols(inputs)
    if symbols:
        _check_upper(mod["main"], symbols, batch or 1)
        mod["main"] = function
        return relax.transform.BindSymbolicVars(dict.fromkeys(symbols, batch or 1))(mod)
    mod["main"] = function
    if not inputs or not inputs[0].ty.shape:
        return mod  # make_model refuses it
    fixed = int(inputs[0].ty.shape[0])
    if batch is not None and batch != fixed:
        raise ModelError(
            f"batch={batch}: this program was exported with the fixed batch {fixed}; export it "
            "again with that batch, or with dynamic_shapes={'x': {0: torch.export.Dim('batch')}}"
        )
    return mod


def _batch_symbols(inputs: list[Any]) -> list[str]:
    """Names of the inputs' dynamic leading dimensions; no other may be dynamic."""
    from tvm import tirx

    symbols = set()
    for variable in inputs:
        for axis, dim in enumerate(variable.ty.shape):
            if isinstance(dim, tirx.IntImm):
                continue
            if axis != 0 or not hasattr(dim, "name"):
                raise ModelError(
                    f"input {variable.name!r} has the dynamic shape {list(variable.ty.shape)}; "
                    "only the batch (axis 0) may be dynamic: export with fixed height and width"
                )
            symbols.add(str(dim.name))
    return sorted(symbols)


def _check_upper(function: Any, symbols: list[str], batch: int) -> None:
    bounds = (function.attrs or {}).get("tir_var_upper_bound") or {}
    for symbol in symbols:
        if symbol in bounds and batch > int(bounds[symbol]):
            raise ModelError(
                f"batch={batch}: this program was exported for a batch of at most "
                f"{int(bounds[symbol])}"
            )
