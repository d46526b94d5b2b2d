"""Group each convolution with its bias, residual and activation into one composite function.

conv2d [-> add(bias)] [-> add(residual)] [-> an activation of the table] becomes a call of a
function with the attribute Composite="tvm_winograd.conv", placed where the chain ended, so the
epilogue is known before any kernel is chosen. A link of the chain, or a step of an activation that
several operators spell, is taken only if nobody else reads it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from ..activation import Applied
from ..errors import UnsupportedError
from ..ir.bindings import count_uses, op_name
from ..ir.conv_spec import conv2d_spec, static_shape
from ..ir.rebuild import main_rewritten
from ..ir.spelling import Finder, emit
from ..shapes import ConvSpec, Epilogue
from .params import Params, param_names

COMPOSITE = "tvm_winograd.conv"


@dataclass
class ConvGroup:
    """The variables of one chain; `out` is the last one."""

    index: int  # of the convolution among all, in program order
    spec: ConvSpec
    conv: Any  # the relax.nn.conv2d call
    out: Any
    bias: Any = None
    residual: Any = None
    activation: Applied | None = None
    inner: list[Any] = field(default_factory=list)  # variables swallowed by the group

    @property
    def epilogue(self) -> Epilogue:
        text = self.activation.text if self.activation else None
        return Epilogue(self.bias is not None, self.residual is not None, activation=text)

    def args(self) -> list[Any]:
        """data, weight[, bias][, residual]"""
        return [a for a in (*self.conv.args, self.bias, self.residual) if a is not None]


def group_convs(mod: tvm.IRModule, params: Params | None = None) -> tvm.IRModule:
    """The module with every convolution of "main" (and its epilogue) as a composite call.

    Args:
        params: of "main"; without, activations whose slope is a parameter are not taken.
    """
    groups = {g.out: g for g in find_groups(mod["main"], params)}
    rewriter = _Rewriter(mod, groups)
    return main_rewritten(mod, rewriter)


def find_groups(func: relax.Function, params: Params | None = None) -> list[ConvGroup]:
    """All chains of `func`, in program order; of two that meet in an add, the first takes it."""
    uses, finder = count_uses(func), Finder(func, _scalars(func, params))
    groups: list[ConvGroup] = []
    taken: set = set()  # variables that end a link of some chain
    for block in func.body.blocks:
        consumer = _only_consumers(block, uses)
        for binding in block.bindings:
            if op_name(binding.value) == "relax.nn.conv2d":
                spec = conv2d_spec(binding.value)
                group = ConvGroup(len(groups), spec, binding.value, binding.var)
                while not _take_activation(group, finder, taken):
                    following = consumer.get(group.out)
                    if following is None or following.var in taken:
                        break
                    if not _take(group, following.value):
                        break
                    group.inner.append(group.out)
                    group.out = following.var
                    taken.add(group.out)
                groups.append(group)
    return groups


def _scalars(func: relax.Function, params: Params | None) -> dict[relax.Var, float]:
    """The parameters of one element, by variable."""
    names = param_names(func, params) if params else {}
    return {v: float(params[n].item()) for v, n in names.items() if params and params[n].size == 1}


def _take_activation(group: ConvGroup, finder: Finder, taken: set) -> bool:
    """Take the activation behind group.out, which ends the chain, if there is one."""
    found = finder.find(group.out, integers=group.spec.acc != "float32")
    if found is None or found.out in taken:
        return False
    group.inner += [group.out, *found.inner]
    group.activation, group.out = found.applied, found.out
    taken.add(group.out)
    return True


def _take(group: ConvGroup, value: Any) -> bool:
    """Take `value`, the only reader of group.out, into the epilogue if it belongs there."""
    if op_name(value) != "relax.add":
        return False
    other = value.args[1] if value.args[0].same_as(group.out) else value.args[0]
    if group.residual is not None:
        return False
    if group.bias is None and _is_bias(other, group.spec):
        group.bias = other
    elif _is_residual(other, group):
        group.residual = other
    else:
        return False
    return True


def _is_bias(expr: Any, spec: ConvSpec) -> bool:
    """K values that broadcast along the channel axis of the output."""
    shape = _static_shape(expr)
    want = tuple(spec.k if axis == "C" else 1 for axis in spec.layout)
    trimmed = want[next(i for i, v in enumerate(want) if v != 1) :] if spec.k > 1 else want
    return shape is not None and shape in (want, trimmed)


def _is_residual(expr: Any, group: ConvGroup) -> bool:
    same = _static_shape(expr) == group.spec.output_shape
    return same and not expr.same_as(group.out) and isinstance(expr, relax.Var)


def _static_shape(expr: Any) -> tuple[int, ...] | None:
    try:
        return static_shape(expr)
    except UnsupportedError:
        return None


def _only_consumers(block: relax.BindingBlock, uses: Counter) -> dict:
    """variable -> the binding that alone reads it (once), within `block`."""
    out = {}
    for binding in block.bindings:
        if isinstance(binding.value, relax.Call):
            for arg in binding.value.args:
                if isinstance(arg, relax.Var) and uses[arg] == 1:
                    out[arg] = binding
    return out


@mutator
class _Rewriter(PyExprMutator):
    """Replaces the last binding of each group by a composite call; the rest dies as dead code."""

    def __init__(self, mod: tvm.IRModule, groups: dict) -> None:
        super().__init__(mod)
        self.groups = groups
        self.inner = {v for g in groups.values() for v in g.inner}

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        if binding.var in self.inner:
            return
        group = self.groups.get(binding.var)
        if group is None:
            super().visit_var_binding_(binding)
            return
        gvar = self.builder_.add_func(_composite(group), "conv")
        args = [self.visit_expr(a) for a in group.args()]
        inside = isinstance(binding.var, relax.DataflowVar)
        emit = self.builder_.emit if inside else self.builder_.emit_output
        new = emit(relax.Call(gvar, args), binding.var.name)
        self.set_var_remap(binding.var, new)


def _composite(group: ConvGroup) -> relax.Function:
    """The chain as a function of (data, weight[, bias][, residual])."""
    names = ["data", "weight"] + ["bias"] * group.epilogue.bias
    names += ["residual"] * group.epilogue.residual
    params = {n: relax.Var(n, a.ty) for n, a in zip(names, group.args(), strict=True)}
    builder = relax.BlockBuilder()
    with builder.function("conv", list(params.values())):
        with builder.dataflow():
            conv_args = [params["data"], params["weight"]]
            out = builder.emit(relax.Call(group.conv.op, conv_args, group.conv.attrs))
            for name in names[2:]:
                out = builder.emit(relax.op.add(out, params[name]))
            if group.activation:
                out = emit(builder, group.activation, out)
            out = builder.emit_output(out)
        builder.emit_func_output(out)
    func = builder.get()["conv"].without_attr("global_symbol")
    attrs = {"Composite": COMPOSITE, "epilogue": group.epilogue.key(), "index": group.index}
    return func.with_attrs(attrs)
