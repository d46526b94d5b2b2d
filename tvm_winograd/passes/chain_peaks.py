"""max|x| of each image travels from the kernel that writes x to the one that reads it.

A kernel that splits float32 values (math fp16x3) scales them by max|x| of their image. Alone it
takes a pass over x to find that. In a network the kernel before knows it: its store raises a value
an image, which is cleared at the network's start, and what lies in between (a max pool, a reshape)
does not raise it. A tensor of any other kind still takes the pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from ..ir.bindings import op_name
from ..ir.rebuild import main_rewritten
from .lower_convs import Layer

DTYPE = "uint32"  # the bits of a float32 of 0 or more: they are ordered like their values
# Their results are no larger than max|x| of the same image, where axis 0 stays what it is.
_KEEP = (
    "relax.nn.max_pool2d", "relax.nn.relu", "relax.reshape", "relax.flatten", "relax.squeeze",
    "relax.expand_dims", "relax.permute_dims",
)  # fmt: skip
_THREADS = 256
_MOST_CLEARED = 200  # tensors by one kernel: its arguments are 4 KiB at most


@dataclass(frozen=True)
class _Conv:
    """A convolution of "main" that is computed by a kernel with peaks."""

    index: int  # of the layer
    var: Any  # its output
    source: Any  # the convolution's output whose peaks bound its input; None: it finds its own


def chain_peaks(mod: tvm.IRModule, layers: Sequence[Layer]) -> tuple[tvm.IRModule, list[Layer]]:
    """`mod` with peaks handed on, and its layers, which name the functions that do.

    Args:
        mod: after lower_convs.  layers: its convolutions in program order.
    """
    convs = _find(mod, layers)
    read = {conv.source for conv in convs if conv.source is not None}
    if not read:
        return mod, list(layers)
    chaining = _Chaining(mod, layers, {conv.var: conv for conv in convs}, read)
    out = main_rewritten(mod, chaining)
    return relax.transform.DeadCodeElimination(["main"])(out), chaining.layers


def _find(mod: tvm.IRModule, layers: Sequence[Layer]) -> list[_Conv]:
    """The convolutions with peaks, each with whose peaks it may take."""
    bound: dict[Any, Any] = {}  # variable -> the convolution's output that bounds it
    found, index = [], 0
    names = {layer.function for layer in layers}
    for block in mod["main"].body.blocks:
        for binding in block.bindings:
            call = binding.value
            if _called(call) in names:
                if layers[index].choice.kernel.peaks is not None:
                    x = call.args[1].fields[0]
                    found.append(_Conv(index, binding.var, bound.get(x)))
                    bound[binding.var] = binding.var
                index += 1
            elif op_name(call) in _KEEP and _same_images(call) and call.args[0] in bound:
                bound[binding.var] = bound[call.args[0]]
    return found


def _called(call: Any) -> str | None:
    """The name of the PrimFunc that an expression calls."""
    if isinstance(call, relax.Call) and call.op == tvm.ir.Op.get("relax.call_tir"):
        return str(call.args[0].name_hint)
    return None


def _same_images(call: relax.Call) -> bool:
    """Whether axis 0 of the result holds the images of axis 0 of the argument."""
    shapes = (call.args[0].ty.shape, call.ty.shape)
    if not all(isinstance(shape, relax.ShapeExpr) and len(shape.values) > 1 for shape in shapes):
        return False
    before, after = (int(shape.values[0]) for shape in shapes)
    axes = getattr(call.attrs, "axes", None)
    moved = op_name(call) == "relax.permute_dims" and (not axes or int(axes[0]) != 0)
    return before == after and not moved


@mutator
class _Chaining(PyExprMutator):
    """Calls each convolution's function with peaks in place of the one without."""

    def __init__(
        self, mod: tvm.IRModule, layers: Sequence[Layer], convs: dict[Any, _Conv], read: set[Any]
    ) -> None:
        super().__init__(mod)
        self.mod, self.layers, self.convs, self.read = mod, list(layers), convs, read
        self.peaks: dict[Any, relax.Var] = {}  # a convolution's output -> what it writes
        self.functions: dict[tuple[str, bool, bool], Any] = {}

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        conv = self.convs.get(binding.var)
        if conv is None:
            super().visit_var_binding_(binding)
            return
        if not self.peaks:
            self._clear()
        given, written = conv.source is not None, binding.var in self.read
        call = binding.value
        arguments = [self.visit_expr(a) for a in call.args[1].fields]
        if given:
            arguments.append(self.peaks[conv.source])
        if written:
            arguments.append(self.peaks[binding.var])
        gvar = self._function(conv.index, given, written)
        inside = isinstance(binding.var, relax.DataflowVar)
        emit = self.builder_.emit if inside else self.builder_.emit_output
        new = relax.call_tir(gvar, arguments, call.ty_args[0])
        self.set_var_remap(binding.var, emit(new, binding.var.name))

    def _function(self, index: int, given: bool, written: bool) -> Any:
        """The function of a layer that takes and gives peaks; the layer names it from now on."""
        layer = self.layers[index]
        key = (layer.function, given, written)
        if key not in self.functions:
            make = layer.choice.kernel.peaks
            assert make is not None
            func = make(layer.spec, layer.epilogue, layer.choice.config, given, written)
            func = func.with_attr("op_pattern", 8).without_attr("global_symbol")
            self.functions[key] = self.builder_.add_func(func, f"{layer.function}_peaks")
        gvar = self.functions[key]
        self.layers[index] = replace(
            layer, function=gvar.name_hint, peaks=("given",) * given + ("written",) * written
        )
        return gvar

    def _clear(self) -> None:
        """Zeros for every convolution that writes peaks; all of them before the first runs."""
        images = self.mod["main"].params[0]
        writers = [conv for conv in self.convs.values() if conv.var in self.read]
        for start in range(0, len(writers), _MOST_CLEARED):
            some = writers[start : start + _MOST_CLEARED]
            sizes = [self.layers[conv.index].spec.n for conv in some]
            # It reads nothing of the images, but a function of nothing would be folded.
            shape = [int(extent) for extent in images.ty.shape.values]
            func = clear(shape, str(images.ty.dtype), sizes).with_attr("op_pattern", 8)
            gvar = self.builder_.add_func(func.without_attr("global_symbol"), "clear_peaks")
            types = [relax.TensorType((n,), DTYPE) for n in sizes]
            made = self.builder_.emit(relax.call_tir(gvar, [self.visit_expr(images)], types))
            for i, conv in enumerate(some):
                field = made if len(some) == 1 else relax.TupleGetItem(made, i)
                self.peaks[conv.var] = self.builder_.emit(field)


def clear(shape: Sequence[int], dtype: str, sizes: Sequence[int]) -> Any:
    """main(X, T_0, T_1, ...), scheduled: sets each T_i, of sizes[i] values, to 0 in one kernel."""
    from tvm.script.ir_builder import IRBuilder
    from tvm.script.ir_builder import tirx as T

    with IRBuilder() as builder:
        with T.prim_func(s_tir=True):
            T.func_name("main")
            T.arg("X", T.buffer(shape, dtype))
            outputs = [T.arg(f"T_{i}", T.buffer((n,), DTYPE)) for i, n in enumerate(sizes)]
            T.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True})
            with T.sblock("root"):
                blocks = -(-max(sizes) // _THREADS)
                with T.thread_binding(0, blocks, thread="blockIdx.x") as block:
                    with T.thread_binding(0, _THREADS, thread="threadIdx.x") as thread:
                        with T.sblock("clear"):
                            T.reads()
                            T.writes()
                            for output, n in zip(outputs, sizes, strict=True):
                                with T.If(block * _THREADS + thread < n):
                                    with T.Then():
                                        zero = tvm.tirx.const(0, DTYPE)
                                        T.buffer_store(output, zero, [block * _THREADS + thread])
    return builder.get()
