"""Errors of an ONNX file, found before anything is made of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

from ..errors import ModelError
from .model import TensorSpec

_PADDED = ("Conv", "ConvTranspose", "MaxPool", "AveragePool", "LpPool")


def check_file(proto: Any, path: Path) -> Any:
    """`proto`, if it is what the standard asks of a model.

    Raises:
        ModelError: a value made twice or never, an unknown version or attribute, a window that
            does not fit its weight or its pads.
    """
    _check_domains(proto)
    _check_opsets(proto, path.name)
    bare = [o.type.tensor_type for o in proto.graph.output if _without_shape(o)]
    for tensor in bare:
        tensor.shape.SetInParent()  # the checker wants one, and does not look at it
    try:
        onnx.checker.check_model(proto if proto.ByteSize() < 2**31 else str(path))
    except (onnx.checker.ValidationError, ValueError, RuntimeError) as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        why = lines[0] if lines else type(error).__name__
        raise ModelError(f"{path.name} is no valid ONNX model: {why}; export it again") from error
    finally:
        for tensor in bare:
            tensor.ClearField("shape")
    shapes = {i.name: tuple(i.dims) for i in proto.graph.initializer}
    for node in proto.graph.node:
        if node.op_type in _PADDED and node.domain in ("", "ai.onnx"):
            problem = _window_problem(node, shapes)
            if problem:
                raise ModelError(
                    f"{path.name} is no valid ONNX model: {node.op_type} (node "
                    f"{node.name or node.output[0]!r}) has {problem}; export it again"
                )
    return proto


def check_outputs(proto: Any, batch: int | None, outputs: Sequence[TensorSpec]) -> tuple[str, ...]:
    """Compares the outputs with what the file declares, where that is a number.

    Args:
        batch: bound by the user: then axis 0 may differ.
    Returns:
        Notes on outputs of another rank than declared, where a size is declared as open: exporters
        write so what they do not know.
    Raises:
        ModelError: another rank or size.
    """
    notes = []
    for declared, output in zip(proto.graph.output, outputs, strict=True):
        tensor = declared.type.tensor_type
        if not tensor.HasField("shape"):
            continue
        want = [d.dim_value if d.HasField("dim_value") else None for d in tensor.shape.dim]
        free = [n in (None, -1, 0) or (axis == 0 and batch) for axis, n in enumerate(want)]
        shown = str(want).replace("None", "?")
        if len(want) != len(output.shape) and None in want:
            notes.append(
                f"output {declared.name!r} is declared as {shown}; it is {list(output.shape)}"
            )
            continue
        same = len(want) == len(output.shape) and all(
            f or n == s for f, n, s in zip(free, want, output.shape, strict=True)
        )
        if not same:
            raise ModelError(
                f"output {declared.name!r} is declared as {shown}, but its graph gives "
                f"{list(output.shape)}; export the model again"
            )
    return tuple(notes)


def _check_domains(proto: Any) -> None:
    own = {(f.domain, f.name) for f in proto.functions}
    foreign = [
        n
        for n in proto.graph.node
        if n.domain not in ("", "ai.onnx") and (n.domain, n.op_type) not in own
    ]
    if foreign:
        named = ", ".join(f"{n.domain}::{n.op_type} (node {n.name!r})" for n in foreign[:8])
        raise ModelError(
            f"operators outside the ONNX standard: {named}; supported is the domain ai.onnx: "
            "export the model without them"
        )


def _without_shape(value: Any) -> bool:
    kind = value.type
    return kind.HasField("tensor_type") and not kind.tensor_type.HasField("shape")


def _check_opsets(proto: Any, file: str) -> None:
    versions = [o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")]
    newest = onnx.defs.onnx_opset_version()
    if len(versions) != 1 or not 1 <= versions[0] <= newest:
        raise ModelError(
            f"{file} imports the opset {', '.join(map(str, versions)) or 'none'}; onnx "
            f"{onnx.__version__} knows one of 1 to {newest}: export it for one of them"
        )


def _window_problem(node: Any, shapes: dict[str, tuple[int, ...]]) -> str:
    """What is wrong with the window of a convolution or pooling, or ""."""
    attrs = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    weight = shapes.get(node.input[1]) if len(node.input) > 1 else None
    window = attrs.get("kernel_shape")
    if weight is not None and window is not None and list(weight[2:]) != list(window):
        return f"kernel_shape {list(window)}, but a weight of {list(weight)}"
    rank = len(window) if window is not None else len(weight[2:]) if weight is not None else None
    lengths = {"pads": 2, "strides": 1, "dilations": 1, "output_padding": 1}
    for name, times in lengths.items():
        given = attrs.get(name)
        if given is not None and rank is not None and len(given) != times * rank:
            return f"{len(given)} numbers in {name}, {times * rank} are needed"
        least = 0 if name in ("pads", "output_padding") else 1
        if given is not None and np.size(given) and min(given) < least:
            return f"{name} {list(given)}: at least {least} is needed"
    return ""
