"""Batch normalization into the convolution before it: w' = w * s, b' = (b - mean) * s + beta.

Runs first, on a module whose weights are parameters: the arithmetic is numpy float64, rounded to
float32 once. What cannot be folded is left for relax's DecomposeOpsForInference, with a reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..ir.conv_spec import static_shape, unique_name


@dataclass
class FoldReport:
    """What happened to each batch norm."""

    folded: list[str] = field(default_factory=list)  # names of the weights now scaled
    left: dict[str, str] = field(default_factory=dict)  # batch norm's scale name -> reason


def fold_batch_norm(
    mod: Any, params: Mapping[str, np.ndarray]
) -> tuple[Any, dict[str, np.ndarray], FoldReport]:
    """conv2d [-> add bias] -> batch_norm becomes conv2d -> add bias, in `mod["main"]`.

    Args:
        params: the weight parameters, in the order of the function's last arguments.
    Returns:
        The new module, its parameters (weights keep their names; biases are "<prefix>.bias", of
        shape (1, k, 1, 1) or as the layout says; unused parameters are gone), and a report.
    """
    from tvm import relax

    mod = relax.transform.CanonicalizeBindings()(mod)
    mod = relax.transform.DeadCodeElimination(["main"])(mod)
    graph = _Graph(mod["main"], dict(params))
    report, edits = FoldReport(), _Edits()
    for variable, call in graph.batch_norms():
        site = _pattern(graph, variable, call)
        if isinstance(site, str):
            report.left[graph.name(call.args[1]) or variable.name] = site
        else:
            _fold(graph, site, edits)
            report.folded.append(graph.name(site.weight))
    mod = mod.clone()
    mod["main"], new_params = _rebuild(mod["main"], graph, edits)
    return mod, new_params, report


@dataclass(frozen=True)
class _Site:
    """One foldable chain, in variables of the function."""

    conv: Any  # bound to the conv2d call
    weight: Any  # the parameter
    bias: np.ndarray  # (k,), zero if nothing is added
    norm: Any  # the batch_norm call
    result: Any  # bound to the batch norm's first output
    dropped: tuple[Any, ...]  # bindings that vanish


def _pattern(graph: _Graph, variable: Any, norm: Any) -> _Site | str:
    """The chain that ends in `variable = norm(...)`, or why it is not folded."""
    if norm.attrs.training:
        return "it is in training mode"
    results = graph.users[variable]
    if len(results) != 1 or not graph.is_first_output(results[0]):
        return "its statistics are used, or its output more than once"
    source, bias, dropped = norm.args[0], None, [variable]
    if graph.op(source) == "relax.add":
        left, right = graph.bound[source].args
        conv, addend = (left, right) if graph.op(left) == "relax.nn.conv2d" else (right, left)
        bias = graph.array(addend)
        if graph.op(conv) == "relax.nn.conv2d" and bias is None:
            return "what is added between the convolution and it is not constant"
        dropped.append(source)
    else:
        conv = source
    if graph.op(conv) != "relax.nn.conv2d":
        return "no convolution comes before it"
    problem = _conv_problem(graph, conv, norm) or (
        "the biased output has several consumers" if len(graph.users[source]) != 1 else None
    )
    if problem:
        return problem
    per_channel = _per_channel(bias, graph.bound[conv])
    if per_channel is None:
        return "the value added to the convolution is not one per channel"
    weight = graph.bound[conv].args[1]
    return _Site(conv, weight, per_channel, norm, results[0], tuple(dropped))


def _conv_problem(graph: _Graph, conv: Any, norm: Any) -> str | None:
    """Why this convolution cannot take the scale, or None."""
    call = graph.bound[conv]
    layout, kernel = _out_layout(call), str(call.attrs.kernel_layout)
    if len(graph.users[conv]) != 1:
        return "the convolution's output has several consumers"
    if sorted(layout) != sorted("NCHW") or sorted(kernel) != sorted("OIHW"):
        return f"layouts {layout} and {kernel} are not understood"
    if int(norm.attrs.axis) % 4 != layout.index("C"):
        return f"it normalizes axis {int(norm.attrs.axis)}, not the channels of {layout}"
    if not graph.name(call.args[1]):
        return "the convolution's weight is not a parameter"
    if len(graph.users[call.args[1]]) != 1:
        return "the convolution's weight is shared"
    if any(graph.array(arg) is None for arg in norm.args[1:]):
        return "its statistics are not constant"
    return None


def _per_channel(bias: np.ndarray | None, call: Any) -> np.ndarray | None:
    """`bias` as (k,), if it broadcasts over all axes but the channels."""
    channel = _out_layout(call).index("C")
    channels = static_shape(call)[channel]
    if bias is None:
        return np.zeros(channels)
    if bias.ndim > 4:
        return None
    shape = (1,) * (4 - bias.ndim) + bias.shape
    if bias.size not in (1, channels) or shape[channel] != bias.size:
        return None
    return np.broadcast_to(bias.astype("float64").reshape(-1), (channels,))


def _fold(graph: _Graph, site: _Site, edits: _Edits) -> None:
    """Scale the weight in graph.params, and replace the chain by an addition."""
    from tvm import relax

    attrs, call = site.norm.attrs, graph.bound[site.conv]
    gamma, beta, mean, var = (np.asarray(graph.array(a), "float64") for a in site.norm.args[1:])
    scale = 1 / np.sqrt(var + float(attrs.epsilon))
    scale = scale * gamma if attrs.scale else scale
    bias = (site.bias - mean) * scale + (beta if attrs.center else 0)

    name = graph.name(site.weight)
    weight = graph.params[name]
    along_k = [-1 if axis == "O" else 1 for axis in str(call.attrs.kernel_layout)]
    graph.params[name] = (weight.astype("float64") * scale.reshape(along_k)).astype("float32")

    along_c = [-1 if axis == "C" else 1 for axis in _out_layout(call)]
    array = bias.reshape(along_c).astype("float32")
    variable = relax.Var(_bias_name(name), relax.TensorType(array.shape, "float32"))
    edits.biases[site.weight] = (variable, array)
    edits.values[site.result] = relax.op.add(site.conv, variable)
    edits.dropped.update(site.dropped)


class _Graph:
    """A function with lookups: what binds a variable, who uses it, which parameter it is."""

    def __init__(self, function: Any, params: dict[str, np.ndarray]) -> None:
        from tvm.relax.analysis import free_vars

        self.params = params
        weights = list(function.params)[len(function.params) - len(params) :]
        self.names = dict(zip(weights, params, strict=True))
        self.bound: dict[Any, Any] = {}
        self.users: dict[Any, list[Any]] = {v: [] for v in function.params}
        for block in function.body.blocks:
            for binding in block.bindings:
                self.bound[binding.var] = binding.value
                self.users[binding.var] = []
                for used in free_vars(binding.value):
                    self.users[used].append(binding.var)
        for used in free_vars(function.body.body):
            self.users[used].append(None)  # the function's result

    def batch_norms(self) -> list[tuple[Any, Any]]:
        return [(v, e) for v, e in self.bound.items() if self.op(v) == "relax.nn.batch_norm"]

    def op(self, expr: Any) -> str:
        """The operator that computes a variable, or ""."""
        return getattr(getattr(self.bound.get(expr), "op", None), "name", "")

    def name(self, expr: Any) -> str:
        """The parameter's name, or ""."""
        return self.names.get(expr, "")

    def is_first_output(self, variable: Any) -> bool:
        from tvm import relax

        value = self.bound.get(variable)
        return isinstance(value, relax.TupleGetItem) and int(value.index) == 0

    def array(self, expr: Any) -> np.ndarray | None:
        """The value of a parameter, a constant, or a reshaped one; None if not constant."""
        from tvm import ir

        if isinstance(expr, ir.GenericConst):
            return expr.value.numpy()
        if expr in self.names:
            return self.params[self.names[expr]]
        if self.op(expr) in ("relax.reshape", "relax.expand_dims"):
            inner = self.array(self.bound[expr].args[0])
            return None if inner is None else inner.reshape(static_shape(expr))
        return None


@dataclass
class _Edits:
    """Changes to the function's bindings and parameters."""

    dropped: set[Any] = field(default_factory=set)
    values: dict[Any, Any] = field(default_factory=dict)  # variable -> new value
    biases: dict[Any, tuple[Any, np.ndarray]] = field(default_factory=dict)  # after that weight


def _rebuild(function: Any, graph: _Graph, edits: _Edits) -> tuple[Any, dict[str, np.ndarray]]:
    """The function with the edits made and unused weight parameters removed."""
    from tvm import relax
    from tvm.relax.analysis import free_vars

    builder = relax.BlockBuilder()
    blocks = []
    for block in function.body.blocks:
        bindings = [
            relax.VarBinding(b.var, builder.normalize(edits.values[b.var]))
            if b.var in edits.values
            else b
            for b in block.bindings
            if b.var not in edits.dropped
        ]
        blocks.append(type(block)(bindings))
    body = relax.SeqExpr(blocks, function.body.body)

    used = set(free_vars(body))
    kept = [v for v in function.params if v not in graph.names or v in used]
    taken = {graph.names[v] for v in kept if v in graph.names}
    variables: list[Any] = []
    params: dict[str, np.ndarray] = {}
    for variable in kept:
        variables.append(variable)
        if variable in graph.names:
            params[graph.names[variable]] = graph.params[graph.names[variable]]
        if variable in edits.biases:
            bias, array = edits.biases[variable]
            variables.append(bias)
            params[unique_name(_bias_name(graph.names[variable]), taken)] = array
    new = relax.Function(variables, body, function.ret_ty, function.is_pure, function.attrs)
    return builder.normalize(new), params


def _out_layout(call: Any) -> str:
    return str(call.attrs.out_layout or call.attrs.data_layout)


def _bias_name(weight: str) -> str:
    return f"{weight.removesuffix('.weight')}.bias"
