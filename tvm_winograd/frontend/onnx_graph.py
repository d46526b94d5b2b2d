"""An ONNX graph made static before import: batch bound, shape arithmetic and weight arithmetic
computed, automatic padding spelled out.

TVM's importer takes dynamic pads and computed shapes badly; onnx.reference computes them here.
Functions that TVM does not know become the nodes that the standard defines them by.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, inliner, numpy_helper, shape_inference
from onnx.reference import ReferenceEvaluator

from ..errors import ModelError
from ..ir.recurrent import CELLS
from .model import DTYPES, IMPORT_ERRORS, Sizes, wrong_dtype

_RANDOM = ("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli")
# random, and recurrent layers, of which onnx.reference overlooks attributes
_NOT_COMPUTED = (*_RANDOM, *CELLS)
_AUTO_PADDED = ("Conv", "MaxPool", "AveragePool", "LpPool")
_ALL_OUTPUTS = ("Split", "TopK", "Unique")  # of which none is optional
_SMALL = 1024  # elements; larger constants are no shapes
_IR_VERSION = 8  # before 4, initializers had to be graph inputs too


@dataclass(frozen=True)
class Static:
    """A model ready for TVM's importer, and the values in it that no input reaches.

    Float arrays are initializers (weights); integers and scalars are Constant nodes, so that the
    importer sees their values.
    """

    model: Any
    constants: dict[str, np.ndarray]


def prepare(proto: Any, sizes: Sizes) -> Static:
    """`proto` with every size a number."""
    proto = inlined(proto)
    static = _Static(proto, sizes)
    while static.fold() or static.choose_branches():
        pass
    shapes = static.shapes()
    static.nodes = [new for node in static.nodes for new in static.rewrite(node, shapes)]
    static.pads_into_convs()
    static.drop_unread()
    return Static(static.model(), static.used())


def inlined(proto: Any) -> Any:
    """`proto` with its own functions, and those of the standard that TVM lacks, written out."""
    from .onnx_import import known_operators

    if proto.functions:
        proto = inliner.inline_local_functions(proto)
    nodes = [n for n in proto.graph.node if n.domain in ("", "ai.onnx")]
    wanted = sorted({n.op_type for n in nodes} - known_operators())
    if not wanted:
        return proto
    typed = onnx.ModelProto()
    typed.CopyFrom(proto)
    typed.graph.value_info.extend(
        helper.make_tensor_value_info(i.name, i.data_type, i.dims) for i in proto.graph.initializer
    )
    try:
        return inliner.inline_selected_functions(
            typed, [("", name) for name in wanted], inline_schema_functions=True
        )
    except RuntimeError:  # the importer names what is left
        return proto


class _Static:
    """A graph being folded: nodes left, values known."""

    def __init__(self, proto: Any, sizes: Sizes) -> None:
        graph = proto.graph
        self.opsets = proto.opset_import
        self.ir_version = max(proto.ir_version, _IR_VERSION)
        self.nodes = list(graph.node)
        self.constants = {i.name: numpy_helper.to_array(i) for i in graph.initializer}
        inputs = [i for i in graph.input if i.name not in self.constants]
        for value in (*inputs, *graph.output):
            if not value.type.HasField("tensor_type"):
                raise ModelError(f"{value.name!r} is no tensor; export the model without it")
        bound = [_bound_input(i, sizes) for i in inputs]
        dims = [d for i in inputs for d in i.type.tensor_type.shape.dim]
        sizes.check_used([i.name for i in inputs] + [d.dim_param for d in dims if d.dim_param])
        self.inputs = bound
        self.outputs = [onnx.ValueInfoProto(name=o.name) for o in graph.output]
        for output, given in zip(self.outputs, graph.output, strict=True):
            output.type.tensor_type.elem_type = given.type.tensor_type.elem_type

    def used(self) -> dict[str, np.ndarray]:
        """The known values that a node or the outputs read."""
        names = {n for node in self.nodes for n in node.input} | {o.name for o in self.outputs}
        return {n: a for n, a in self.constants.items() if n in names}

    def shapes(self) -> dict[str, list[int]]:
        """All static shapes that shape inference finds. Weights go in by shape alone."""
        used = self.used()
        small = [numpy_helper.from_array(a, n) for n, a in used.items() if a.size <= _SMALL]
        large = [_value_info(n, a) for n, a in used.items() if a.size > _SMALL]
        try:
            inferred = shape_inference.infer_shapes(
                self._model(self.nodes, [*self.inputs, *large], small), data_prop=True
            ).graph
        except (shape_inference.InferenceError, onnx.checker.ValidationError) as error:
            raise ModelError(
                f"the ONNX graph's shapes do not fit together: {_first_line(error)}"
            ) from error
        shapes = {n: list(a.shape) for n, a in used.items()}
        for value in (*inferred.value_info, *inferred.input, *inferred.output):
            tensor = value.type.tensor_type
            if tensor.HasField("shape") and all(d.HasField("dim_value") for d in tensor.shape.dim):
                shapes[value.name] = [d.dim_value for d in tensor.shape.dim]
        return shapes

    def fold(self) -> bool:
        """Move every node whose inputs are known into `constants`; whether any was."""
        shapes, kept = self.shapes(), []
        for node in self.nodes:
            computed = _compute(node, self.constants, shapes, self.opsets)
            if computed is None:
                kept.append(node)
            else:
                self.constants.update(zip(node.output, computed, strict=True))
        changed = len(kept) < len(self.nodes)
        self.nodes = kept
        return changed

    def choose_branches(self) -> bool:
        """Put the branch that is taken in the place of every If whose condition is known."""
        kept: list[Any] = []
        for node in self.nodes:
            condition = self.constants.get(node.input[0]) if node.op_type == "If" else None
            if condition is None:
                kept.append(node)
                continue
            taken = "then_branch" if bool(condition.item()) else "else_branch"
            (graph,) = (a.g for a in node.attribute if a.name == taken)
            self.constants |= {i.name: numpy_helper.to_array(i) for i in graph.initializer}
            kept += graph.node
            pairs = zip(graph.output, node.output, strict=True)
            kept += [helper.make_node("Identity", [o.name], [n], node.name) for o, n in pairs]
        changed = len(kept) != len(self.nodes) or any(
            a is not b for a, b in zip(kept, self.nodes, strict=True)
        )
        self.nodes = kept
        return changed

    def drop_unread(self) -> None:
        """Forget optional outputs, at a node's end, that nothing reads."""
        read = {n for node in self.nodes for n in node.input} | {o.name for o in self.outputs}
        for node in self.nodes:
            while len(node.output) > 1 and node.output[-1] not in read:
                if node.op_type in _ALL_OUTPUTS:
                    break
                node.output.pop()

    def rewrite(self, node: Any, shapes: dict[str, list[int]]) -> list[Any]:
        """Nodes the importer handles better than `node`."""
        if node.op_type == "Sum":
            return _sum_as_adds(node)
        if node.op_type == "Clip":
            return self._clip(node)
        if node.op_type in _AUTO_PADDED:
            _explicit_pads(node, shapes)
        if node.op_type == "ConvTranspose":
            _transposed_pads(node, shapes)
        return [node]

    def _clip(self, node: Any) -> list[Any]:
        """Clip with known bounds as Relu, or comparisons (imported, it would be a loop nest)."""
        attrs = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        names = dict(zip(("min", "max"), node.input[1:], strict=False))
        if any(name and name not in self.constants for name in names.values()):
            return [node]
        given = {k: self.constants[name] for k, name in names.items() if name}
        if any(a.size != 1 or a.dtype.kind != "f" for a in given.values()):
            return [node]
        bounds = attrs | {k: float(a.item()) for k, a in given.items()}
        value, new = node.input[0], []
        for key, op in (("min", "Less"), ("max", "Greater")):
            bound = bounds.get(key, np.nan)
            if not np.isfinite(bound):
                continue
            out, limit = f"{node.output[0]}_{key}", f"{node.output[0]}_{key}_bound"
            if key == "min" and bound == 0:
                new.append(helper.make_node("Relu", [value], [out], node.name))
            else:
                self.constants[limit] = np.array(bound, "float32")
                beyond = helper.make_node(op, [value, limit], [f"{out}_beyond"], node.name)
                chosen = [f"{out}_beyond", limit, value]
                new += [beyond, helper.make_node("Where", chosen, [out], node.name)]
            value = out
        return [*new, helper.make_node("Identity", [value], [node.output[0]], node.name)]

    def pads_into_convs(self) -> None:
        """Zero Pads that only convolutions read become their padding (a Pad of its own would
        cost a pass over memory, and TVM imports it as a bare loop nest)."""
        outputs = {o.name for o in self.outputs}
        for pad in [n for n in self.nodes if n.op_type == "Pad"]:
            readers = [n for n in self.nodes if pad.output[0] in n.input]
            widths = _zero_pad(pad, self.constants)
            if widths is None or pad.output[0] in outputs:
                continue
            if all(n.op_type == "Conv" and n.input[0] == pad.output[0] for n in readers):
                for conv in readers:
                    conv.input[0] = pad.input[0]
                    attrs = {a.name: helper.get_attribute_value(a) for a in conv.attribute}
                    own = attrs.get("pads") or [0] * len(widths)
                    total = [int(a + b) for a, b in zip(own, widths, strict=True)]
                    _replace(conv, ("auto_pad", "pads"), "pads", total)
                self.nodes.remove(pad)

    def model(self) -> Any:
        """Float arrays as initializers, other constants as Constant nodes."""
        used = self.used()
        weights = {n: a for n, a in used.items() if a.dtype.kind == "f" and a.ndim > 0}
        constants = [
            helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array, name))
            for name, array in used.items()
            if name not in weights
        ]
        arrays = [numpy_helper.from_array(a, n) for n, a in weights.items()]
        return self._model([*constants, *self.nodes], self.inputs, arrays)

    def _model(self, nodes: list[Any], inputs: list[Any], initializers: list[Any]) -> Any:
        graph = helper.make_graph(nodes, "static", inputs, self.outputs, initializers)
        return helper.make_model(graph, opset_imports=self.opsets, ir_version=self.ir_version)


def _bound_input(value: Any, sizes: Sizes) -> Any:
    """An input with its static shape."""
    value = onnx.ValueInfoProto.FromString(value.SerializeToString())
    tensor = value.type.tensor_type
    if (dtype := str(helper.tensor_dtype_to_np_dtype(tensor.elem_type))) not in DTYPES:
        raise wrong_dtype(f"input {value.name!r}", dtype)
    dims = list(tensor.shape.dim)
    if tensor.HasField("shape") and not dims:
        return value  # a scalar
    if not dims:
        raise ModelError(f"input {value.name!r} has no shape; export the model with one")
    for axis, dim in enumerate(dims):
        # exporters also write 0 or -1 for a size that is open
        fixed = dim.dim_value if dim.HasField("dim_value") and dim.dim_value > 0 else None
        size = sizes.bound(value.name, axis, fixed, dim.dim_param, len(dims))
        dim.ClearField("dim_param")
        dim.dim_value = size
    return value


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
    if graphs or node.op_type in _NOT_COMPUTED or any(name not in constants for name in names):
        return None
    inputs = [_value_info(n, constants[n]) for n in dict.fromkeys(names)]
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output]
    alone = helper.make_model(
        helper.make_graph([node], "fold", inputs, outputs), opset_imports=opsets
    )
    try:
        values = ReferenceEvaluator(alone).run(None, {n: constants[n] for n in names})
    except IMPORT_ERRORS:  # onnx.reference lacks some operators and versions: leave it to TVM
        return None
    return [np.asarray(value) for value in values]


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
    _replace(node, ("auto_pad", "pads"), "pads", before + after)


def _transposed_pads(node: Any, shapes: dict[str, list[int]]) -> None:
    """output_shape or auto_pad of a ConvTranspose as pads and output_padding, in place.

    An odd sum of pads has its larger part at the end for SAME_UPPER, else at the beginning.
    Versions before 11 say the opposite; onnxruntime follows 11 for all.
    """
    attrs = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    mode = attrs.get("auto_pad", b"NOTSET").decode()
    asked = attrs.get("output_shape")
    if (asked is None and not mode.startswith("SAME")) or not all(
        n in shapes for n in node.input[:2]
    ):
        return
    sizes, windows = shapes[node.input[0]][2:], shapes[node.input[1]][2:]
    ones = [1] * len(sizes)
    strides, dilations = attrs.get("strides", ones), attrs.get("dilations", ones)
    more = list(attrs.get("output_padding", [0] * len(sizes)))
    out = (
        [n * s for n, s in zip(sizes, strides, strict=True)]
        if asked is None
        else asked[-len(sizes) :]
    )
    before, after = [], []
    for i, (size, window) in enumerate(zip(sizes, windows, strict=True)):
        natural = strides[i] * (size - 1) + more[i] + (window - 1) * dilations[i] + 1
        total = natural - out[i]
        more[i] += max(-total, 0)
        small, large = max(total, 0) // 2, max(total, 0) - max(total, 0) // 2
        before.append(small if mode == "SAME_UPPER" else large)
        after.append(large if mode == "SAME_UPPER" else small)
    _replace(node, ("auto_pad", "pads", "output_shape"), "pads", before + after)
    _replace(node, ("output_padding",), "output_padding", more)


def _zero_pad(node: Any, constants: dict[str, np.ndarray]) -> list[int] | None:
    """The spatial widths (before, then after) of a Pad with zeros, or None if it is another."""
    attrs = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    inputs = [constants.get(name) if name else None for name in node.input[1:]]
    unknown = any(n and a is None for n, a in zip(node.input[1:], inputs, strict=True))
    if unknown or attrs.get("mode", b"constant") != b"constant" or len(inputs) > 2:
        return None
    value = inputs[1] if len(inputs) > 1 else attrs.get("value")
    if value is not None and (np.size(value) != 1 or np.ravel(value)[0] != 0):
        return None
    given = inputs[0] if inputs else attrs["pads"]
    pads = np.asarray(given).reshape(2, -1)
    if pads.min() < 0 or pads[:, :2].any():
        return None
    return [int(v) for v in pads[:, 2:].reshape(-1)]


def _replace(node: Any, old: tuple[str, ...], new: str, value: Any) -> None:
    """Drop the attributes `old` of a node and set `new`."""
    kept = [a for a in node.attribute if a.name not in old]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute(new, value)])


def _value_info(name: str, array: np.ndarray) -> Any:
    return helper.make_tensor_value_info(
        name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
    )


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0]
