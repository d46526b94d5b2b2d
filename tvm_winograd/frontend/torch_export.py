"""torch.export programs (.pt2 files, or ExportedProgram objects) as Models."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ModelError, UnsupportedError
from .model import IMPORT_ERRORS, Model, file_source, make_model, refused, tidy
from .pt2_file import plain_copy


def load_pt2(path: Path, batch: int | None = None, trust: bool = False) -> Model:
    """The program of a .pt2 file written by torch.export.save.

    Args:
        trust: torch may run what the file says (see pt2_file).
    """
    torch = _torch()
    source: Any = path if trust else plain_copy(path)
    try:
        exported = torch.export.load(source)
    except (*IMPORT_ERRORS, OSError, zipfile.BadZipFile) as error:
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
    _torch()
    from .torch_import import import_program

    sizes = _sizes(exported, batch)
    program, exported = exported, exported.run_decompositions()
    names = _buffers_as_parameters(exported)
    try:
        mod = import_program(exported, sizes)
    except ModelError:
        raise
    except IMPORT_ERRORS as error:
        raise refused(f"the program {name!r}", error) from error
    mod["main"] = mod["main"].without_attr("params")
    state = {**exported.state_dict, **dict(exported.named_parameters())}
    arrays = {n: _array(state[n]) for n in names}
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
    leaves = [leaf for leaf in _pytree.tree_leaves(outputs) if leaf is not None]
    return [_array(tensor) for tensor in leaves]


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise ModelError(
            "reading a torch.export program needs torch: pip install 'tvm-winograd[torch]'"
        ) from error
    return torch


def _buffers_as_parameters(exported: Any) -> list[str]:
    """Declare the saved floating buffers parameters, so that the importer leaves them as arguments
    too (it binds buffers as constants); the names of all parameters in argument order."""
    from torch.export.graph_signature import InputKind, InputSpec

    specs = exported.graph_signature.input_specs
    for i, spec in enumerate(specs):
        saved = exported.state_dict.get(spec.target)
        if spec.kind is InputKind.BUFFER and saved is not None and saved.is_floating_point():
            specs[i] = InputSpec(InputKind.PARAMETER, spec.arg, spec.target)
    return [spec.target for spec in specs if spec.kind is InputKind.PARAMETER]


def _array(tensor: Any) -> np.ndarray:
    """Its values: numpy knows no lazy negation and no lazy conjugation."""
    plain = tensor.detach().cpu().resolve_neg().resolve_conj()
    return np.ascontiguousarray(plain.numpy())


def _sizes(exported: Any, batch: int | None) -> dict[str, int]:
    """The value of each dynamic size: the batch, 1 if it is None.

    Raises:
        ModelError: another axis is dynamic, or the program has a fixed or smaller batch.
    """
    sizes: dict[str, int] = {}
    shapes = _input_shapes(exported)
    for name, shape in shapes.items():
        for axis, dim in enumerate(shape):
            if isinstance(dim, int):
                continue
            symbol = dim.node.expr
            if axis != 0 or not symbol.is_Symbol:
                raise ModelError(
                    f"input {name!r} has the dynamic shape {[str(d) for d in shape]}; "
                    "only the batch (axis 0) may be dynamic: export with fixed height and width"
                )
            sizes[str(symbol)] = batch or 1
    _check_upper(exported, sizes)
    first = next((shape for shape in shapes.values() if shape), None)
    if not sizes and first is not None and batch is not None and batch != first[0]:
        raise ModelError(
            f"batch={batch}: this program was exported with the fixed batch {first[0]}; export it "
            "again with that batch, or with dynamic_shapes={'x': {0: torch.export.Dim('batch')}}"
        )
    return sizes


def _input_shapes(exported: Any) -> dict[str, list[Any]]:
    """The sizes of each input that is a tensor: numbers, or torch's symbols."""
    names = set(exported.graph_signature.user_inputs)
    found = {}
    for node in exported.graph.nodes:
        if node.op == "placeholder" and node.name in names and "val" in node.meta:
            found[node.name] = list(getattr(node.meta["val"], "shape", []))
    return found


def _check_upper(exported: Any, sizes: Mapping[str, int]) -> None:
    for symbol, bounds in exported.range_constraints.items():
        size = sizes.get(str(symbol))
        if size is not None and size > bounds.upper:
            raise ModelError(
                f"batch={size}: this program was exported for a batch of at most {bounds.upper}"
            )
