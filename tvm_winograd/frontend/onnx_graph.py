"""An ONNX graph made static before import: batch bound, shape arithmetic and weight arithmetic
computed, automatic padding spelled out.

TVM's importer takes dynamic pads and computed shapes badly; onnx.reference computes them here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper, shape_inference
from onnx.reference import ReferenceEvaluator

from ..errors import ModelError

_RANDOM = ("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli")
_AUTO_PADDED = ("Conv", "MaxPool", "AveragePool")
_ROUNDS = 8  # of folding; each may reveal shapes to the next


def prepare(proto: Any, batch: int | None) -> Any:
    """A copy of `proto`, ready for TVM's importer.

    Initializers that are float arrays stay initializers (weights); integers and scalars become
    Constant nodes, so that the importer sees their values.
    """
    proto = onnx.ModelProto.FromString(proto.SerializeToString())
    graph = proto.graph
    _check_domains(graph)
    constants = {i.name: numpy_helper.to_array(i) for i in graph.initializer}
    inputs = [i for i in graph.input if i.name not in constants]
    del graph.input[:]
    graph.input.extend(inputs)
    for value in inputs:
        _bind_input(value, batch)
    for output in graph.output:
        output.type.tensor_type.ClearField("shape")
    del graph.value_info[:]
    for _ in range(_ROUNDS):
        shapes = _shapes(proto)
        if not _fold(proto, constants, shapes):
            break
    shapes = _shapes(proto)
    nodes = [new for node in graph.node for new in _rewrite(node, shapes)]
    _store(graph, nodes, constants)
    return proto


def _check_domains(graph: Any) -> None:
    foreign = [n for n in graph.node if n.domain not in ("", "ai.onnx")]
    if foreign:
        named = ", ".join(f"{n.domain}::{n.op_type} (node {n.name!r})" for n in foreign[:8])
        raise ModelError(
            f"operators outside the ONNX standard: {named}; supported is the domain ai.onnx: "
            "export the model without them"
        )


def _bind_input(value: Any, batch: int | None) -> None:
    """Give an input its static shape."""
    tensor = value.type.tensor_type
    if tensor.elem_type != onnx.TensorProto.FLOAT:
        kind = onnx.TensorProto.DataType.Name(tensor.elem_type)
        raise ModelError(
            f"input {value.name!r} is {kind}; only float32 models are supported: export the model "
            "in float32 and choose the precision with --dtype when compiling"
        )
    dims = list(tensor.shape.dim)
    if not dims:
        raise ModelError(f"input {value.name!r} has no shape; export the model with one")
    dynamic = [d.dim_param or "?" for d in dims[1:] if not d.dim_value]
    if dynamic:
        raise ModelError(
            f"input {value.name!r} has the dynamic sizes {', '.join(dynamic)}; only the batch "
            "(axis 0) may be dynamic: export with fixed height and width"
        )
    bound = batch or dims[0].dim_value or 1
    dims[0].ClearField("dim_param")
    dims[0].dim_value = bound


def _shapes(proto: Any) -> dict[str, list[int]]:
    """All static shapes that shape inference finds."""
    try:
        inferred = shape_inference.infer_shapes(proto, data_prop=True, strict_mode=True).graph
    except (shape_inference.InferenceError, onnx.checker.ValidationError) as error:
        raise ModelError(
            f"the ONNX graph's shapes do not fit together: {error}; if it fixes its batch inside, "
            "export it with a dynamic batch"
        ) from error
    shapes = {}
    for value in (*inferred.value_info, *inferred.input, *inferred.output):
        tensor = value.type.tensor_type
        if tensor.HasField("shape") and all(d.HasField("dim_value") for d in tensor.shape.dim):
            shapes[value.name] = [d.dim_value for d in tensor.shape.dim]
    return shapes


def _fold(proto: Any, constants: dict[str, np.ndarray], shapes: dict[str, list[int]]) -> bool:
    """Compute every node whose inputs are known into `constants`; whether any was."""
    graph = proto.graph
    kept = []
    for node in graph.node:
        computed = _compute(node, constants, shapes, proto.opset_import)
        if computed is None:
            kept.append(node)
        else:
            constants.update(zip(node.output, computed, strict=True))
    changed = len(kept) < len(graph.node)
    kept = [onnx.NodeProto.FromString(n.SerializeToString()) for n in kept]
    del graph.node[:]
    graph.node.extend(kept)
    used = {name for node in kept for name in node.input} | {o.name for o in graph.output}
    del graph.initializer[:]
    graph.initializer.extend(
        numpy_helper.from_array(array, name) for name, array in constants.items() if name in used
    )
    return changed


def _compute(
    node: Any, constants: dict[str, np.ndarray], shapes: dict[str, list[int]], opsets: Any
) -> list[np.ndarray] | None:
    """The outputs of a node, if they depend on constants or static shapes only."""
    if node.op_type == "Shape" and node.input[0] in shapes:
        bounds = {a.name: a.i for a in node.attribute}
        shape = shapes[node.input[0]][bounds.get("start", 0) : bounds.get("end", None)]
        return [np.array(shape, np.int64)]
    names = [name for name in node.input if name]
    graphs = any(a.HasField("g") or a.graphs for a in node.attribute)
    if graphs or node.op_type in _RANDOM or any(name not in constants for name in names):
        return None
    inputs = [
        helper.make_tensor_value_info(
            n, helper.np_dtype_to_tensor_dtype(constants[n].dtype), constants[n].shape
        )
        for n in dict.fromkeys(names)
    ]
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output]
    alone = helper.make_model(
        helper.make_graph([node], "fold", inputs, outputs), opset_imports=opsets
    )
    values = ReferenceEvaluator(alone).run(None, {n: constants[n] for n in names})
    return [np.asarray(value) for value in values]


def _rewrite(node: Any, shapes: dict[str, list[int]]) -> list[Any]:
    """Nodes the importer handles better than `node`."""
    if node.op_type == "Sum":
        return _sum_as_adds(node)
    if node.op_type in _AUTO_PADDED:
        _explicit_pads(node, shapes)
    return [node]


def _sum_as_adds(node: Any) -> list[Any]:
    """Sum of n as n - 1 additions (the importer would stack the operands and reduce)."""
    terms = list(node.input)
    if len(terms) == 1:
        return [helper.make_node("Identity", terms, node.output, node.name)]
    adds, total = [], terms[0]
    for i, term in enumerate(terms[1:], 1):
        out = node.output[0] if i == len(terms) - 1 else f"{node.output[0]}_partial{i}"
        adds.append(helper.make_node("Add", [total, term], [out], f"{node.name}_{i}"))
        total = out
    return adds


def _explicit_pads(node: Any, shapes: dict[str, list[int]]) -> None:
    """auto_pad SAME_UPPER or SAME_LOWER as numbers, in place."""
    attrs = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    mode = attrs.get("auto_pad", b"NOTSET").decode()
    if not mode.startswith("SAME") or node.input[0] not in shapes:
        return
    sizes = shapes[node.input[0]][2:]
    windows = attrs.get("kernel_shape") or shapes[node.input[1]][2:]
    ones = [1] * len(sizes)
    strides, dilations = attrs.get("strides", ones), attrs.get("dilations", ones)
    before, after = [], []
    for size, window, stride, dilation in zip(sizes, windows, strides, dilations, strict=True):
        total = max((-(-size // stride) - 1) * stride + dilation * (window - 1) + 1 - size, 0)
        small, large = total // 2, total - total // 2
        before.append(small if mode == "SAME_UPPER" else large)
        after.append(large if mode == "SAME_UPPER" else small)
    kept = [a for a in node.attribute if a.name not in ("auto_pad", "pads")]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute("pads", before + after)])


def _store(graph: Any, nodes: list[Any], constants: dict[str, np.ndarray]) -> None:
    """Write nodes and constants back: float arrays as initializers, the rest as Constant nodes."""
    used = {name for node in nodes for name in node.input} | {o.name for o in graph.output}
    needed = {name: array for name, array in constants.items() if name in used}
    weights = {n: a for n, a in needed.items() if a.dtype.kind == "f" and a.ndim > 0}
    shapelike = [
        helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array, name))
        for name, array in needed.items()
        if name not in weights
    ]
    nodes = [onnx.NodeProto.FromString(n.SerializeToString()) for n in nodes]
    del graph.node[:]
    graph.node.extend([*shapelike, *nodes])
    del graph.initializer[:]
    graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in weights.items())
