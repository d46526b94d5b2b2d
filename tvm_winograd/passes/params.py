"""Shape changes of parameters and parameters joined to one, done once at compile time; and the
parameter list of "main"."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from ..ir.conv_spec import static_shape, unique_name
from ..ir.rebuild import function_with, main_rewritten

Params = dict[str, np.ndarray]
_RESHAPES = ("relax.reshape", "relax.expand_dims", "relax.squeeze", "relax.flatten")


def fold_param_shapes(mod: tvm.IRModule, params: Params) -> tuple[tvm.IRModule, Params]:
    """reshape, permute_dims and the like of a parameter become a parameter of that shape, and so
    does a concat of parameters alone.

    Frontends emit them for each bias of a convolution, each weight of a linear layer, and for both
    directions of a recurrent one.
    """
    main = mod["main"]
    folding = _Folding(mod, param_names(main, params), params)
    done = main_rewritten(mod, folding)
    out = relax.transform.DeadCodeElimination()(done)
    made = list(folding.made.values())
    names = {**param_names(main, params), **{v: folding.names[v] for v in made}}
    return keep_used_params(out, names, {v: folding.values[v] for v in names})


def param_names(main: relax.Function, params: Params) -> dict[relax.Var, str]:
    """Variable -> name, for the parameters of "main" behind its num_input inputs."""
    return dict(zip(main.params[int(main.attrs["num_input"]) :], params, strict=True))


def keep_used_params(
    mod: tvm.IRModule, names: dict[relax.Var, str], values: dict[relax.Var, np.ndarray]
) -> tuple[tvm.IRModule, Params]:
    """The module whose "main" takes its inputs and just those of the parameters that it reads.

    Of two that are called the same, the later one is renamed.
    """
    main = mod["main"]
    free = set(relax.analysis.free_vars(main.body))
    kept = [variable for variable in names if variable in free]
    params = [*main.params[: int(main.attrs["num_input"])], *kept]
    mod["main"] = function_with(main, params, main.body)
    taken: set[str] = set()
    return mod, {unique_name(names[v], taken): values[v] for v in kept}


@mutator
class _Folding(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, names: dict[relax.Var, str], params: Params) -> None:
        super().__init__(mod)
        self.names = dict(names)
        self.values = {variable: params[name] for variable, name in names.items()}
        # (parameters, operator, axes, shape) -> the new one
        self.made: dict[tuple, relax.Var] = {}

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        value = self._folded(binding.value)
        if value is None or not isinstance(binding.var, relax.DataflowVar):
            super().visit_var_binding_(binding)
            return
        call, given = binding.value, _arguments(binding.value)
        name = "+".join(self.names[v] for v in given) + f".{'x'.join(map(str, value.shape))}"
        key = (given, call.op.name, str(getattr(call.attrs, "axes", "")), value.shape)
        if key not in self.made:
            ty = relax.TensorType(value.shape, str(value.dtype))
            self.made[key] = relax.Var(name.replace(".", "_"), ty)
        for variable in (self.made[key], binding.var):
            self.names[variable], self.values[variable] = name, value
        self.set_var_remap(binding.var, self.made[key])

    def _folded(self, call: Any) -> np.ndarray | None:
        """The array that `call` makes of parameters, if it only moves their values."""
        if not isinstance(call, relax.Call) or not isinstance(call.op, tvm.ir.Op):
            return None
        given = _arguments(call)
        if not given or any(v not in self.names for v in given):
            return None
        if call.op.name == "relax.concat":
            axis = call.attrs.axis
            return None if axis is None else np.concatenate([self.values[v] for v in given], axis)
        array = self.values[given[0]]
        if call.op.name in _RESHAPES:
            return array.reshape(static_shape(call))
        if call.op.name == "relax.permute_dims":
            axes = call.attrs.axes
            order = [int(a) for a in axes] if axes else None
            return np.ascontiguousarray(np.transpose(array, order))
        return None


def _arguments(call: relax.Call) -> tuple[relax.Expr, ...]:
    """The tensors that a shape change or a concat is made of."""
    first = call.args[:1]
    return tuple(first[0].fields if first and isinstance(first[0], relax.Tuple) else first)
