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
from .model import (
    DTYPES,
    IMPORT_ERRORS,
    Model,
    Sizes,
    file_source,
    make_model,
    refused,
    tidy,
    wrong_dtype,
)
from .pt2_file import plain_copy


def load_pt2(
    path: Path,
    batch: int | None = None,
    trust: bool = False,
    given: Mapping[str, Any] | None = None,
) -> Model:
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
    loaded = from_exported(exported, batch, path.stem, given)
    source = {**file_source("torch.export", path), "batch": loaded.batch}
    return replace(loaded, source={**source, **Sizes(batch, given or {}).described()})


def from_exported(
    exported: Any,
    batch: int | None = None,
    name: str = "torch",
    given: Mapping[str, Any] | None = None,
) -> Model:
    """A Model of an ExportedProgram; parameters and buffers keep their state dict names.

    Args:
        batch: needed if the batch was exported as dynamic (1 if None); else the exported one.
        given: other dynamic sizes (see model.Sizes).
    Raises:
        ModelError: operators TVM's importer does not know, a batch the program cannot have,
            a model in training mode, a dtype other than float32.
    """
    _torch()
    from .torch_import import import_program
    from .torch_recurrent import decompositions

    _check_dtypes(exported)
    sizes = _sizes(exported, batch, given or {})
    program, exported = exported, exported.run_decompositions(decompositions(exported))
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
        {"kind": "torch.export", "batch": batch, **Sizes(batch, given or {}).described()},
        rebuild=lambda other: from_exported(program, other, name, given).mod,
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


def _check_dtypes(exported: Any) -> None:
    """Raises:
    ModelError: an input not of DTYPES, or a floating parameter or buffer that is not float32.
    """
    inputs = {n: t for n, t in _inputs(exported).items() if hasattr(t, "dtype")}
    state = {n: t for n, t in exported.state_dict.items() if t.is_floating_point()}
    for kind, tensors, supported in (("input", inputs, DTYPES), ("parameter", state, ("float32",))):
        for name, tensor in tensors.items():
            if (dtype := str(tensor.dtype).removeprefix("torch.")) not in supported:
                raise wrong_dtype(f"{kind} {name!r}", dtype, supported)


def _sizes(exported: Any, batch: int | None, given: Mapping[str, Any]) -> dict[str, int]:
    """The value of each symbol among the sizes of the inputs: the batch is 1 if it is None.

    Raises:
        ModelError: another axis is open and not given, or the program has a fixed or smaller batch.
    """
    wanted, shapes = Sizes(batch, given), _input_shapes(exported)
    sizes: dict[str, int] = {}
    for name, shape in shapes.items():
        for axis, dim in enumerate(shape):
            fixed = dim if isinstance(dim, int) else None
            symbol = "" if fixed is not None else str(dim.node.expr)
            if fixed is not None and axis == 0:
                continue  # compared below
            if fixed is None and not dim.node.expr.is_Symbol:
                continue  # twice another, say: it follows
            size = wanted.bound(name, axis, fixed, symbol, len(shape))
            if fixed is None and sizes.setdefault(symbol, size) != size:
                raise ModelError(f"input {name!r}: its axis {axis} must be {sizes[symbol]}")
    wanted.check_used([*shapes, *sizes])
    _check_upper(exported, sizes)
    first = next((shape for shape in shapes.values() if shape), None)
    fixed_batch = first[0] if first and isinstance(first[0], int) else None
    if fixed_batch is not None and batch is not None and batch != fixed_batch:
        raise ModelError(
            f"batch={batch}: this program was exported with the fixed batch {fixed_batch}; export "
            "it again with that batch, or with dynamic_shapes={'x': {0: torch.export.Dim('batch')}}"
        )
    return sizes


def _inputs(exported: Any) -> dict[str, Any]:
    """What torch noted of each input of the user: a tensor without values, or a number."""
    names = set(exported.graph_signature.user_inputs)
    places = [n for n in exported.graph.nodes if n.op == "placeholder" and n.name in names]
    return {node.name: node.meta["val"] for node in places if "val" in node.meta}


def _input_shapes(exported: Any) -> dict[str, list[Any]]:
    """The sizes of each input: numbers, or torch's symbols."""
    return {name: list(getattr(t, "shape", [])) for name, t in _inputs(exported).items()}


def _batches(exported: Any) -> set[str]:
    """The symbols that stand on axis 0 of an input."""
    shapes = _input_shapes(exported).values()
    return {str(s[0].node.expr) for s in shapes if s and not isinstance(s[0], int)}


def _check_upper(exported: Any, sizes: Mapping[str, int]) -> None:
    for symbol, bounds in exported.range_constraints.items():
        size = sizes.get(str(symbol))
        if size is not None and size > bounds.upper:
            raise ModelError(
                f"batch={size}: this program was exported for a batch of at most {bounds.upper}"
                if str(symbol) in _batches(exported)
                else f"{symbol}={size}: this program was exported for at most {bounds.upper}"
            )
