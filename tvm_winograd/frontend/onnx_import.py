"""TVM's importer of ONNX graphs, checked node by node.

A node's attributes and inputs must be read, or be what they are by default: what TVM overlooks is
refused. Each output is compared with the shape and dtype that ONNX infers for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
from onnx import helper, shape_inference
from tvm import relax, tirx
from tvm.relax.frontend.onnx.onnx_frontend import ONNXGraphImporter, _get_convert_map

from ..errors import ModelError
from .model import IMPORT_ERRORS, refused
from .onnx_node import Node
from .onnx_ops import CONVERT, REFUSED

# attributes that change no number: hints for training, storage and accuracy
_HARMLESS = {"tvm_custom", "seed", "stash_type", "stash_axis", "momentum", "is_test", "spatial"}
_HARMLESS |= {"consumed_inputs", "noop_with_empty_axes", "kernel_shape"}
_HARMLESS |= {"num_outputs"}  # of Split: so many as the node has

# TVM's is another operator of that name, or no kernel can be made for what it makes
_WRITTEN_OUT = {"Attention", "RMSNormalization"}


@dataclass(frozen=True)
class Inferred:
    """What ONNX infers of a value; None where it does not know."""

    dtype: str | None
    shape: tuple[int | None, ...] | None

    def fits(self, ty: Any) -> bool:
        """Whether a relax tensor type may be of this value."""
        if self.dtype is not None and str(ty.dtype) != self.dtype:
            return False
        if self.shape is None or not isinstance(ty.shape, relax.ShapeExpr):
            return True
        got = [int(dim) if isinstance(dim, tirx.IntImm) else None for dim in ty.shape.values]
        return len(got) == len(self.shape) and all(
            None in pair or pair[0] == pair[1] for pair in zip(got, self.shape, strict=True)
        )

    def __str__(self) -> str:
        shape = "unknown shape" if self.shape is None else list(self.shape)
        return f"{self.dtype or 'unknown dtype'} {shape}".replace("None", "?")


def infer(model: Any) -> dict[str, Inferred]:
    """What ONNX infers of each value of a graph."""
    graph = shape_inference.infer_shapes(model, data_prop=True).graph
    return {v.name: _inferred(v) for v in (*graph.value_info, *graph.output)}


def import_graph(model: Any, constants: Mapping[str, np.ndarray]) -> Any:
    """The relax module of a static ONNX model; its initializers stay arguments.

    Args:
        constants: the known values, by name.
    Raises:
        ModelError: a node that TVM cannot convert, or converts to another shape or dtype.
    """
    (opset,) = (o.version for o in model.opset_import if o.domain in ("", "ai.onnx"))
    importer = Importer(infer(model), constants)
    return importer.from_onnx(model.graph, opset)


def known_operators() -> set[str]:
    """What is converted, or refused with a reason; the rest may be written out as functions."""
    return {*_get_convert_map(), *CONVERT, *REFUSED, "Constant"} - _WRITTEN_OUT


class Importer(ONNXGraphImporter):
    """TVM's importer with our converters before its own, and checks behind both."""

    def __init__(self, inferred: Mapping[str, Inferred], constants: Mapping[str, np.ndarray]):
        super().__init__({}, "float32", keep_params_in_input=True)
        self.inferred, self.constants = inferred, constants
        self.node: Any = None
        self.failed: Exception | None = None

    def _construct_nodes(self, graph: Any) -> None:
        for node in graph.node:
            self.node, self.failed = node, None
            try:
                super()._construct_nodes(SimpleNamespace(node=[node]))
                if self.failed is not None:  # a node of which an empty tuple is a value
                    raise self.failed
            except ModelError:
                raise
            except IMPORT_ERRORS as error:
                cause = self.failed or error
                if isinstance(cause, ModelError):
                    raise cause from None
                raise refused(what(node), cause) from cause
            self._check(node)

    def _convert_operator(self, op_name: str, inputs: Any, attrs: Any, opset: int) -> Any:
        """An error is kept for `_construct_nodes`: TVM would print it. An empty tuple, which no
        node takes, stands for the result."""
        try:
            return self._converted(op_name, inputs, attrs, opset)
        except IMPORT_ERRORS as error:
            self.failed = error
            return relax.Tuple([])

    def _converted(self, op_name: str, inputs: Any, attrs: Any, opset: int) -> Any:
        if op_name in REFUSED:
            raise ModelError(f"{what(self.node)} is not supported: {REFUSED[op_name]}")
        read = _Read(attrs)
        if op_name in CONVERT:
            known = [self.constants.get(name) for name in self.node.input]
            node = Node(what(self.node), self.bb, inputs, read, opset, known, self.node)
            value = CONVERT[op_name](node)
            value = None if value is None else self.bb.normalize(value)
        else:
            value = None
        if value is None:
            value = super()._convert_operator(op_name, inputs, read, opset)
        self._check_read(read)
        return value

    def _check_read(self, read: _Read) -> None:
        """Raises:
        ModelError: an attribute that no converter has looked at, and that is not the default.
        """
        for attribute in self.node.attribute:
            name = attribute.name
            if name not in read.names and name not in _HARMLESS and not self._default(attribute):
                value = helper.get_attribute_value(attribute)
                value = value.decode() if isinstance(value, bytes) else value
                raise ModelError(
                    f"{what(self.node)} with {name}={value} is not supported: TVM's importer does "
                    "not look at it; export the model without it"
                )

    def _default(self, attribute: Any) -> bool:
        schema = onnx.defs.get_schema(self.node.op_type, self.opset, self.node.domain)
        known = schema.attributes.get(attribute.name)
        if known is None or not known.default_value.name:
            return False
        mine, theirs = (helper.get_attribute_value(a) for a in (attribute, known.default_value))
        return bool(np.all(mine == theirs))

    def _check(self, node: Any) -> None:
        """Raises:
        ModelError: an output has another shape or dtype than ONNX infers, or no fixed one.
        """
        for name in filter(None, node.output):
            value = self._nodes.get(name)
            ty = getattr(value, "ty", None)
            if not isinstance(ty, relax.TensorType):
                continue
            fixed = isinstance(ty.shape, relax.ShapeExpr)
            if not fixed or not all(isinstance(d, tirx.IntImm) for d in ty.shape.values):
                raise ModelError(
                    f"{what(node)} gives {name!r} of no fixed size, which is not supported: export "
                    "the model without it"
                )
            shape = [int(d) for d in ty.shape.values]
            if 0 in shape and node.op_type != "Constant":  # it may list no axes
                raise ModelError(
                    f"{what(node)} gives {name!r} of the shape {shape}, without elements; enlarge "
                    "the input or the padding"
                )
            want = self.inferred.get(name)
            if want is not None and not want.fits(ty):
                raise ModelError(
                    f"{what(node)} gives {name!r} as {want}, but TVM imports it as {ty.dtype} "
                    f"{shape}; export the model without it"
                )

    def _check_for_unsupported_ops(self, graph: Any) -> None:
        known = known_operators()
        if unknown := [n for n in graph.node if n.op_type not in known]:
            named = ", ".join(dict.fromkeys(map(what, unknown[:8])))
            raise ModelError(f"not supported: {named}; export the model without it")

    def _sanitize_name(self, name: str) -> str:
        """As TVM's, without a warning."""
        text = name.replace(".", "_")
        if not text:
            return str(self._name_supply.fresh_name("empty_"))
        plain = text[0].isalpha() or text[0] == "_"
        return str(self._name_supply.fresh_name(text if plain else f"input_{text}"))


class _Read(dict):
    """The attributes of a node, and the names that were asked for."""

    def __init__(self, attrs: Mapping[str, Any]) -> None:
        super().__init__(attrs)
        self.names: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        self.names.add(name)
        return super().get(name, default)

    def __getitem__(self, name: str) -> Any:
        self.names.add(name)
        return super().__getitem__(name)

    def pop(self, name: str, *default: Any) -> Any:
        self.names.add(name)
        return super().pop(name, *default)


def what(node: Any) -> str:
    """Operator and node, for a message."""
    name = node.name or next(iter(node.output), "")
    return f"{node.op_type} (node {name!r})"


def _inferred(value: Any) -> Inferred:
    tensor = value.type.tensor_type
    dtype = str(helper.tensor_dtype_to_np_dtype(tensor.elem_type)) if tensor.elem_type else None
    if not tensor.HasField("shape"):
        return Inferred(dtype, None)
    dims = tuple(d.dim_value if d.HasField("dim_value") else None for d in tensor.shape.dim)
    return Inferred(dtype, dims)
