"""Operators computed on another tensor than their own: what follows element by element goes along.

A dense layer computed as a convolution of 1x1 maps, or a transposed convolution before its pixels
are interleaved: bias and ReLU behind it are applied to that tensor too, where a kernel takes them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator

from ..ir.bindings import op_name
from ..ir.clips import Clip, clip_of
from ..ir.rebuild import main_rewritten
from .params import Params, keep_used_params, param_names


class Maps(PyExprMutator):
    """Rewrites "main"; a subclass, a `mutator`, says `start`, `back` and `bias`."""

    def __init__(self, mod: tvm.IRModule, params: Params) -> None:
        super().__init__(mod)
        self.names = param_names(mod["main"], params)
        self.values = {variable: params[name] for variable, name in self.names.items()}
        self.maps: dict[relax.Var, relax.Var] = {}  # variable -> the tensor that it is made of
        self.made: dict[Any, relax.Var] = {}  # parameter -> the same for a convolution

    def start(self, binding: relax.VarBinding) -> relax.Expr | None:
        """The operator of `binding` on the other tensor, if it is of the kind."""
        raise NotImplementedError

    def back(self, variable: relax.Var) -> relax.Expr:
        """The value of a variable, made of self.maps[variable]."""
        raise NotImplementedError

    def bias(self, x: relax.Var, array: np.ndarray) -> np.ndarray | None:
        """What is added to the tensor that `x` is made of, for `array` that is added to x."""
        raise NotImplementedError

    def follow(self, variable: relax.Var, x: relax.Var) -> None:
        """Told that `variable` is x, element by element."""

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        value = self._map_of(binding)
        if value is None:
            super().visit_var_binding_(binding)
            return
        self.maps[binding.var] = self.builder_.emit(value)
        inside = isinstance(binding.var, relax.DataflowVar)
        emit = self.builder_.emit if inside else self.builder_.emit_output
        self.set_var_remap(binding.var, emit(self.back(binding.var)))

    def _map_of(self, binding: relax.VarBinding) -> relax.Expr | None:
        call = binding.value
        if (begun := self.start(binding)) is not None:
            return begun
        if (clip := clip_of(call)) is not None and clip.value in self.maps:
            self.follow(binding.var, clip.value)
            return Clip(self.maps[clip.value], clip.low, clip.high).call()
        if op_name(call) != "relax.add":
            return None
        x, bias = call.args if call.args[0] in self.maps else reversed(call.args)
        if x not in self.maps or bias not in self.values:
            return None
        array = self.bias(x, self.values[bias])
        if array is None:
            return None
        self.follow(binding.var, x)
        return relax.op.add(self.maps[x], self.param(bias, array))

    def param(self, old: relax.Var, array: np.ndarray, *how: Any) -> relax.Var:
        """The parameter `old` as `array`, the same values as a convolution takes them.

        Args:
            how: what the array depends on, beside `old`.
        """
        key = (old, array.shape, *how)
        if key not in self.made:
            ty = relax.TensorType(array.shape, str(array.dtype))
            self.made[key] = relax.Var(old.name, ty)
            self.names[self.made[key]] = self.names[old]
            self.values[self.made[key]] = array
        return self.made[key]


def rewritten(mod: tvm.IRModule, params: Params, rewriting: Maps) -> tuple[tvm.IRModule, Params]:
    """The module that `rewriting`, made of it, makes, and its parameters."""
    done = main_rewritten(mod, rewriting)
    if not rewriting.maps:
        return mod, params
    out = relax.transform.DeadCodeElimination(["main"])(done)
    return keep_used_params(out, rewriting.names, rewriting.values)
