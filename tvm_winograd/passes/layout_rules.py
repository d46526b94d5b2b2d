"""How each operator works on maps whose axes lie in memory in another order than the network says.

A rule takes a call of the network and returns one on the stored arguments, and the order of its
result; or None, where the operator needs its arguments as the network has them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import tvm
from tvm import relax

from .. import activation
from ..errors import UnsupportedError
from ..ir.bindings import op_name
from ..ir.conv_spec import static_shape

Order = tuple[int, ...]
_AXES = "NCHW"  # in any order: a layout that is understood


@dataclass(frozen=True)
class Stored:
    """A tensor of the network: axis i of `expr` is its axis order[i]. A tuple: all such fields."""

    expr: relax.Expr
    order: Order


class Maps(Protocol):
    """Where a rule finds its arguments."""

    layout: str  # wanted for convolutions

    def of(self, expr: relax.Expr) -> Stored:
        """A tensor as it is stored."""

    def in_order(self, expr: relax.Expr, order: Order) -> relax.Expr:
        """A tensor with its axes in `order`; new ones before its first if it has too few."""

    def cheapest(self, exprs: Iterable[relax.Expr]) -> Order | None:
        """The order to which the fewest elements must be brought; None: parameters only."""

    def visit_expr(self, expr: relax.Expr) -> relax.Expr:
        """What is no map, or one as the network has it."""


Rule = Callable[[Maps, Any], Stored | None]


def rule_of(value: Any) -> Rule | None:
    """The rule for an expression, if it is a call of static shapes that has one."""
    name = op_name(value)
    rule = _RULES.get(name) or (_elementwise if name in activation.operators() else None)
    if rule is None or any(shape_of(a) is None for a in value.args if _is_tensor(a)):
        return None
    return rule


def _conv(at: Maps, call: relax.Call) -> Stored | None:
    if not _understood(call, "data_layout"):
        return None
    order = _order(str(call.attrs.data_layout), at.layout)
    args = [at.in_order(call.args[0], order), at.visit_expr(call.args[1])]
    return Stored(_call(call, args, data_layout=at.layout, out_layout=at.layout), order)


def _conv_transpose(at: Maps, call: relax.Call) -> Stored | None:
    """TVM lowers it in NCHW with weights in IOHW only."""
    kernel = str(call.attrs.kernel_layout)
    if not _understood(call, "data_layout") or sorted(kernel) != sorted("IOHW"):
        return None
    order = _order(str(call.attrs.data_layout), _AXES)
    weight = at.in_order(call.args[1], _order(kernel, "IOHW"))
    args = [at.in_order(call.args[0], order), weight]
    layouts = {"data_layout": _AXES, "kernel_layout": "IOHW", "out_layout": _AXES}
    return Stored(_call(call, args, **layouts), order)


def _map(at: Maps, call: relax.Call) -> Stored | None:
    """Pooling, resizing: as the map is stored, if that is its own layout or the convolutions'."""
    if not _understood(call, "layout"):
        return None
    own, order = str(call.attrs.layout), at.of(call.args[0]).order
    if (held := "".join(own[axis] for axis in order)) not in (own, at.layout):
        held, order = at.layout, _order(own, at.layout)
    changes = {"layout": held}
    if hasattr(call.attrs, "out_layout"):
        changes["out_layout"] = held
    args = [at.in_order(call.args[0], order), *map(at.visit_expr, call.args[1:])]
    return Stored(_call(call, args, **changes), order)


def _elementwise(at: Maps, call: relax.Call) -> Stored | None:
    """With broadcasting."""
    tensors = [a for a in call.args if _is_tensor(a)]
    rank = max((len(static_shape(a)) for a in tensors), default=0)
    order = at.cheapest(a for a in tensors if len(static_shape(a)) == rank)
    if order is None:
        return None
    args = [at.in_order(a, order) if _is_tensor(a) else at.visit_expr(a) for a in call.args]
    return Stored(_call(call, args), order)


def _concat(at: Maps, call: relax.Call) -> Stored | None:
    parts = call.args[0]
    if not isinstance(parts, relax.Tuple) or call.attrs.axis is None:
        return None
    if any(shape_of(p) is None for p in parts.fields):
        return None
    if (order := at.cheapest(parts.fields)) is None:
        return None
    fields = relax.Tuple([at.in_order(p, order) for p in parts.fields])
    return Stored(_call(call, [fields], axis=_axis(call.attrs.axis, order)), order)


def _along(at: Maps, call: relax.Call) -> Stored:
    """One axis of the first argument, which the result is like (or the fields of the result)."""
    x = at.of(call.args[0])
    args = [x.expr, *map(at.visit_expr, call.args[1:])]
    return Stored(_call(call, args, axis=_axis(call.attrs.axis, x.order)), x.order)


def _reduce(at: Maps, call: relax.Call) -> Stored:
    x, axes = at.of(call.args[0]), call.attrs.axis
    gone = range(len(x.order)) if axes is None else [int(a) % len(x.order) for a in axes]
    order = x.order
    if not call.attrs.keepdims:
        kept = [axis for axis in range(len(order)) if axis not in gone]
        order = tuple(kept.index(axis) for axis in order if axis in kept)
    changes = {} if axes is None else {"axis": sorted(_axis(a, x.order) for a in gone)}
    return Stored(_call(call, [x.expr], **changes), order)


def _pad(at: Maps, call: relax.Call) -> Stored:
    x, widths = at.of(call.args[0]), list(call.attrs.pad_width)
    moved = [w for axis in x.order for w in widths[2 * axis : 2 * axis + 2]]
    return Stored(_call(call, [x.expr], pad_width=moved), x.order)


def _permute(at: Maps, call: relax.Call) -> Stored:
    x = at.of(call.args[0])
    axes = axes_of(call.attrs.axes, len(x.order))
    return Stored(x.expr, tuple(axes.index(axis) for axis in x.order))


_ELEMENTWISE = (
    *("add", "subtract", "multiply", "divide", "maximum", "minimum", "power", "where", "equal"),
    *("less", "greater", "sqrt", "rsqrt", "negative", "exp", "log", "tanh", "abs", "clip"),
    *("sigmoid", "nn.relu", "nn.relu6", "nn.leakyrelu", "nn.silu", "nn.gelu"),
)
_MAPS = ("nn.max_pool2d", "nn.avg_pool2d", "nn.adaptive_avg_pool2d", "image.resize2d")
_RULES: dict[str | None, Rule] = {
    "relax.nn.conv2d": _conv,
    "relax.nn.conv2d_transpose": _conv_transpose,
    "relax.permute_dims": _permute,
    "relax.concat": _concat,
    "relax.nn.pad": _pad,
    **{f"relax.{name}": _elementwise for name in _ELEMENTWISE},
    **{f"relax.{name}": _map for name in _MAPS},
    **{f"relax.{name}": _along for name in ("split", "nn.softmax", "nn.batch_norm", "nn.prelu")},
    **{f"relax.{name}": _reduce for name in ("mean", "sum", "max", "min")},
}


def _call(call: relax.Call, args: Sequence[Any], **changes: Any) -> relax.Call:
    """The same operator on other arguments, some of its attributes changed."""
    attrs = call.attrs
    if changes:
        info = type(attrs).__tvm_ffi_type_info__
        fields = {field.name: getattr(attrs, field.name) for field in info.fields}
        attrs = tvm.ir.make_node(info.type_key, **{**fields, **changes})
    return relax.Call(call.op, list(args), attrs)


def _understood(call: relax.Call, name: str) -> bool:
    """Whether the layout in this attribute has the four axes, and the output's is the same."""
    layout = str(getattr(call.attrs, name))
    out = str(getattr(call.attrs, "out_layout", "") or layout)
    return sorted(layout) == sorted(_AXES) and out == layout


def reordered(found: Stored, order: Order) -> relax.Expr:
    """`found` in `order`: a transpose, or a view where only axes of size 1 move."""
    axes, shape = [found.order.index(axis) for axis in order], static_shape(found.expr)
    if moves(axes, shape):
        return relax.op.permute_dims(found.expr, axes)
    return relax.op.reshape(found.expr, [shape[axis] for axis in axes])


def moves(axes: Sequence[int], shape: Sequence[int]) -> bool:
    """Whether a transpose changes anything in memory."""
    long = [axis for axis in axes if shape[axis] > 1]
    return long != sorted(long)


def axes_of(axes: Any, rank: int) -> list[int]:
    """The axes of a permute_dims."""
    return [int(a) % rank for a in axes] if axes else list(range(rank))[::-1]


def _axis(axis: Any, order: Order) -> int:
    """Where an axis of the network's tensor is stored."""
    return order.index(int(axis) % len(order))


def _order(own: str, layout: str) -> Order:
    return tuple(own.index(axis) for axis in layout)


def own_order(order: Order) -> Order:
    return tuple(range(len(order)))


def _is_tensor(expr: Any) -> bool:
    return isinstance(expr.ty, relax.TensorType)


def shape_of(expr: Any) -> Order | None:
    try:
        return static_shape(expr)
    except UnsupportedError:
        return None
