"""Every convolution of a network in one memory layout; transposes that cancel vanish.

A tensor of the new network may lie in memory with its axes in another order than the network says.
A permute_dims is then no work: its result is the same tensor in another order. Work is left where
a tensor meets an operator that needs its axes in a certain order, and there it is done once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from ..ir.bindings import op_name
from ..ir.conv_spec import static_shape
from ..ir.rebuild import main_rewritten
from .layout_rules import Order, Stored, axes_of, moves, own_order, reordered, rule_of, shape_of
from .params import Params, param_names


def convert_layout(mod: tvm.IRModule, params: Params, layout: str) -> tvm.IRModule:
    """`mod` with all convolutions of "main" on maps in `layout`, e.g. "NHWC".

    Inputs and outputs keep their shapes, parameters their names; weights keep their layout. What
    else a parameter needs (a bias of other axes) is left to fold_param_shapes. A function of
    several blocks stays as it is, and so does a convolution that is not understood.
    """
    main = mod["main"]
    if len(main.body.blocks) != 1 or not isinstance(main.body.blocks[0], relax.DataflowBlock):
        return mod
    converting = _Converting(mod, layout, set(param_names(main, params)))
    done = main_rewritten(mod, converting)
    tidy = [relax.transform.FoldConstant(), relax.transform.DeadCodeElimination(["main"])]
    return tvm.transform.Sequential(tidy)(done)


def cancel_transposes(mod: tvm.IRModule, params: Params) -> tvm.IRModule:
    """`mod` without the transposes around its convolutions, if they cancel; else as it is."""
    layout = given_layout(mod)
    if layout is None or not transposed_bytes(mod, params):
        return mod
    out = convert_layout(mod, params, layout)
    return out if sum(transposed_bytes(out, params)) < sum(transposed_bytes(mod, params)) else mod


def given_layout(mod: tvm.IRModule) -> str | None:
    """The data layout of most of the convolutions of "main"; None if there are none."""
    calls = (call for _, call in _calls(mod) if call.op.name == "relax.nn.conv2d")
    found = Counter(str(call.attrs.data_layout) for call in calls)
    return max(found, key=lambda layout: found[layout]) if found else None


def is_in(mod: tvm.IRModule, layout: str) -> bool:
    """Whether every convolution of "main" is in `layout`."""
    calls = (call for _, call in _calls(mod) if call.op.name == "relax.nn.conv2d")
    return all(str(call.attrs.data_layout) == layout for call in calls)


def transposed_bytes(mod: tvm.IRModule, params: Params) -> list[int]:
    """The size of each tensor that "main" transposes when it runs (a parameter never is)."""
    fixed = set(param_names(mod["main"], params))
    found = []
    for var, call in _calls(mod):
        if fixed.issuperset(relax.analysis.free_vars(call)):
            fixed.add(var)
        elif call.op.name == "relax.permute_dims" and (shape := shape_of(call.args[0])) is not None:
            if moves(axes_of(call.attrs.axes, len(shape)), shape):
                found.append(int(np.prod(shape)) * np.dtype(str(call.ty.dtype)).itemsize)
    return found


def _calls(mod: tvm.IRModule) -> Iterator[tuple[relax.Var, relax.Call]]:
    """(variable, call) of the operators of "main", in order."""
    for block in mod["main"].body.blocks:
        for binding in block.bindings:
            if op_name(binding.value):
                yield binding.var, binding.value


@mutator
class _Converting(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, layout: str, fixed: set[relax.Var]) -> None:
        super().__init__(mod)
        self.layout = layout
        self.fixed = fixed  # parameters, and what is made of nothing else
        self.stored: dict[relax.Var, Stored] = {}
        self.made: dict[tuple[Stored, Order], relax.Var] = {}  # conversions

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        if self.fixed.issuperset(relax.analysis.free_vars(binding.value)):
            self.fixed.add(binding.var)
            found = None
        else:
            found = self._converted(binding.value)
        if found is None:  # the arguments come in their own order: visit_dataflow_var_
            super().visit_var_binding_(binding)
        elif isinstance(binding.var, relax.DataflowVar):
            self.stored[binding.var] = self._emitted(found, binding.var.name)
        else:
            if found.order != own_order(found.order):
                emitted = self._emitted(found, binding.var.name)
                found = Stored(reordered(emitted, own_order(found.order)), found.order)
            output = self.builder_.emit_output(found.expr, binding.var.name)
            self.set_var_remap(binding.var, output)

    def visit_dataflow_var_(self, var: relax.DataflowVar) -> relax.Expr:
        if (found := self.stored.get(var)) is None:
            return super().visit_dataflow_var_(var)
        if isinstance(found.expr.ty, relax.TupleType):
            fields = (self._field(found, i) for i in range(len(found.expr.ty.fields)))
            return relax.Tuple([self._in_order(f, own_order(f.order)) for f in fields])
        return self._in_order(found, own_order(found.order))

    def _converted(self, value: Any) -> Stored | None:
        """`value` on maps as they are stored, or None: in the network's own order."""
        if isinstance(value, relax.TupleGetItem) and value.tuple_value in self.stored:
            return self._field(self.stored[value.tuple_value], int(value.index))
        rule = rule_of(value)
        return rule(self, value) if rule else None

    def _emitted(self, found: Stored, name: str = "") -> Stored:
        if isinstance(found.expr, relax.Var):
            return found
        return Stored(self.builder_.emit(found.expr, name), found.order)

    def _field(self, found: Stored, index: int) -> Stored:
        field = self._emitted(Stored(relax.TupleGetItem(found.expr, index), found.order))
        rank = int(field.expr.ty.ndim)
        return field if rank == len(found.order) else Stored(field.expr, tuple(range(rank)))

    def of(self, expr: relax.Expr) -> Stored:
        """A tensor as it is stored."""
        if expr in self.stored:
            return self.stored[expr]
        return Stored(self.visit_expr(expr), tuple(range(len(static_shape(expr)))))

    def in_order(self, expr: relax.Expr, order: Order) -> relax.Expr:
        """A tensor with its axes in `order`; new ones before its first if it has too few."""
        found, missing = self.of(expr), len(order) - len(static_shape(expr))
        if missing and order != own_order(order):
            own = self._in_order(found, own_order(found.order))
            wide = relax.op.reshape(own, (1,) * missing + static_shape(expr))
            found = self._emitted(Stored(wide, own_order(order)))
        elif missing:
            order = own_order(found.order)
        return self._in_order(found, order)

    def _in_order(self, found: Stored, order: Order) -> relax.Expr:
        if found.order == order:
            return found.expr
        key = (found, order)
        if key not in self.made:
            self.made[key] = self.builder_.emit(reordered(found, order))
        return self.made[key]

    def cheapest(self, exprs: Iterable[relax.Expr]) -> Order | None:
        """The order to which the fewest elements must be brought; None: parameters only."""
        maps = [self.of(e) for e in exprs if e not in self.fixed and isinstance(e, relax.Var)]

        def moved(order: Order) -> int:
            shapes = [static_shape(m.expr) for m in maps if m.order != order]
            return sum(int(np.prod(shape)) for shape in shapes)

        return min(dict.fromkeys(m.order for m in maps), key=moved, default=None)
