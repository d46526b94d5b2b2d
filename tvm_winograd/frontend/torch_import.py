"""TVM's importer of torch.export programs, checked node by node.

Every dynamic size is a number before it starts. Each node's result is compared with the shape and
dtype that torch noted in the program; what TVM cannot convert is refused by operator and node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import fx
from tvm import relax, tirx
from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

from ..errors import ModelError
from .model import IMPORT_ERRORS, refused
from .torch_indexing import CONVERT as INDEXING
from .torch_ops import convert_map
from .torch_recurrent import CONVERT as RECURRENT
from .torch_sorting import CONVERT as SORTING

_NUMBERS = (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool)
# they check sizes, which are known when a model is compiled
_ASSERTIONS = ("_assert_scalar.default", "sym_constrain_range_for_size.default")


def import_program(exported: Any, sizes: Mapping[str, int]) -> Any:
    """The relax module of a decomposed ExportedProgram; its parameters stay arguments.

    Args:
        sizes: the value of each symbol among the sizes of the inputs. The program's graph is
            changed: nodes that compute sizes become numbers.
    Raises:
        ModelError: a node that TVM cannot convert, or converts to another shape or dtype.
    """
    _make_static(exported.graph, sizes)
    importer = Importer(exported, sizes)
    return importer.from_exported_program(
        exported,
        keep_params_as_input=True,
        unwrap_unit_return_tuple=True,
        no_bind_return_tuple=False,
        custom_convert_map=None,
    )


def size_of(dim: Any, sizes: Mapping[str, int]) -> int | None:
    """A size that torch noted, as a number; None if it depends on data."""
    if isinstance(dim, int):
        return dim
    value = _number(dim, sizes)
    return None if value is None else int(value)


class Importer(ExportedProgramImporter):
    """TVM's importer with our converters before its own, and checks behind both."""

    def __init__(self, exported: Any, sizes: Mapping[str, int]) -> None:
        super().__init__()
        self.exported, self.sizes = exported, sizes
        self._known: dict[Any, np.ndarray | None] = {}
        self._constants = _constants(exported)
        ours = {**convert_map(), **INDEXING, **SORTING, **RECURRENT}
        theirs = {n: _without_importer(f) for n, f in self.create_convert_map().items()}
        self.convert_map: dict[str, Any] = {
            n: self._checked(f) for n, f in {**theirs, **ours}.items()
        }

    def known(self, node: Any) -> np.ndarray | None:
        """The value of a node that depends on no input and no weight, None for another."""
        if not isinstance(node, fx.Node):
            return np.asarray(node)
        if node not in self._known:
            value = self._compute(node)
            self._known[node] = None if value is None else value.numpy()
        return self._known[node]

    def _compute(self, node: Any) -> Any:
        if node.op == "placeholder":
            return self._constants.get(node.name)
        if node.op != "call_function" or torch.Tag.nondeterministic_seeded in node.target.tags:
            return None
        if any(self.known(n) is None for n in node.all_input_nodes):
            return None
        args, kwargs = fx.node.map_arg(
            (node.args, node.kwargs), lambda n: torch.from_numpy(np.array(self._known[n]))
        )
        value = node.target(*args, **kwargs)
        return _plain(value) if isinstance(value, torch.Tensor) else None

    def _checked(self, function: Callable[[Any, Any], Any]) -> Callable[[Any], Any]:
        """A converter whose failures and results name the node."""

        def convert(node: Any) -> Any:
            try:
                value = function(node, self)
            except ModelError:
                raise
            except IMPORT_ERRORS as error:
                raise refused(_what(node), error) from error
            self._check(node, value)
            return value

        return convert

    def _check(self, node: Any, value: Any) -> None:
        """Raises:
        ModelError: `value` has another shape or dtype than torch noted for the node.
        """
        noted, ty = node.meta.get("val"), getattr(value, "ty", None)
        if not isinstance(noted, torch.Tensor) or not isinstance(ty, relax.TensorType):
            return
        if ty.shape is None:
            return
        want = [size_of(dim, self.sizes) for dim in noted.shape]
        got = [int(dim) if isinstance(dim, tirx.IntImm) else None for dim in ty.shape.values]
        same = len(want) == len(got) and all(
            None in pair or pair[0] == pair[1] for pair in zip(want, got, strict=True)
        )
        dtype = self._convert_data_type(noted.dtype)
        if not same or str(ty.dtype) != str(dtype):
            raise ModelError(
                f"{_what(node)} gives {dtype} {want}, but TVM imports it as {ty.dtype} {got}; "
                "export the model without it"
            )

    def _translate_fx_graph(self, graph_module: Any, nodes: Any, *args: Any) -> Any:
        outputs = super()._translate_fx_graph(graph_module, nodes, *args)
        specs = self.exported.graph_signature.output_specs
        if graph_module is not self.exported.graph_module or len(specs) != len(outputs):
            return outputs
        kept = [(o, s) for o, s in zip(outputs, specs, strict=True) if not _is_none(o)]
        specs[:] = [s for _, s in kept]
        return tuple(o for o, _ in kept)

    def _check_unsupported_func_type(self, nodes: Any) -> None:
        calls = [n for n in nodes if n.op == "call_function"]
        unknown = [n for n in calls if n.target.__name__ not in self.convert_map]
        if unknown:
            named = ", ".join(dict.fromkeys(map(_what, unknown[:8])))
            raise ModelError(f"not supported: {named}; export the model without it")

    def _process_derived_symbol(self, symbol: Any, known: Any) -> tuple[str, Any]:
        value = _substituted(symbol, self.sizes)
        if value is None:
            return super()._process_derived_symbol(symbol, known)
        return str(symbol), tirx.IntImm("int64", int(value))

    @staticmethod
    def _convert_pytorch_tensor_to_tvm(tensor: Any) -> Any:
        """Its values: DLPack knows no lazy negation and no lazy conjugation."""
        return ExportedProgramImporter._convert_pytorch_tensor_to_tvm(_plain(tensor))


def _plain(tensor: Any) -> Any:
    return tensor.detach().cpu().resolve_neg().resolve_conj()


def _what(node: Any) -> str:
    return f"{str(node.target).removeprefix('aten.')} (node {node.name!r})"


def _without_importer(function: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda node, importer: function(node)


def _is_none(value: Any) -> bool:
    return getattr(getattr(value, "op", None), "name", "") == "relax.null_value"


def _constants(exported: Any) -> dict[str, Any]:
    """The tensors that are neither inputs nor parameters, by placeholder."""
    from torch.export.graph_signature import InputKind

    values = {**exported.state_dict, **exported.constants}
    fixed = (InputKind.CONSTANT_TENSOR, InputKind.BUFFER)
    specs = [s for s in exported.graph_signature.input_specs if s.kind in fixed]
    return {s.arg.name: _plain(values[s.target]) for s in specs if s.target in values}


def _make_static(graph: Any, sizes: Mapping[str, int]) -> None:
    """Put numbers where the graph computes sizes."""
    numbers = {}
    for node in graph.nodes:
        noted = node.meta.get("val")
        if node.op == "call_function" and isinstance(noted, _NUMBERS):
            value = _number(noted, sizes)
            if value is not None:
                numbers[node] = value
            elif isinstance(noted, torch.SymBool):
                numbers[node] = True  # a size that depends on a constant mask is as it was traced
    for node in list(graph.nodes):
        node.args, node.kwargs = fx.node.map_arg(
            (node.args, node.kwargs), lambda n: numbers.get(n, n)
        )
    for node in reversed(list(graph.nodes)):
        dead = node in numbers or getattr(node.target, "__name__", "") in _ASSERTIONS
        if dead and not node.users:
            graph.erase_node(node)


def _number(noted: Any, sizes: Mapping[str, int]) -> Any:
    if not isinstance(noted, torch.SymInt | torch.SymFloat | torch.SymBool):
        return noted
    return _substituted(noted.node.expr, sizes)


def _substituted(expr: Any, sizes: Mapping[str, int]) -> Any:
    """A sympy expression with every symbol replaced, as a Python number; None if one is unknown."""
    symbols = {s: sizes.get(str(s)) for s in expr.free_symbols}
    if None in symbols.values():
        return None
    value = expr.subs(symbols)
    if value.is_Boolean:
        return bool(value)
    return int(value) if value.is_integer else float(value)
