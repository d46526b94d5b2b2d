"""Whether every number of a kernel's final code fits where that code keeps it, at any size.

Nothing runs: each expression's bounds follow from those of threads and loops, so that convolutions
of gigabytes take no longer than small ones. Guards of a statement narrow bounds; those of a value
(padding) do not: what they keep from being read counts as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import Call, Range
from tvm.tirx.build import split_host_device_mods

from tvm_winograd import ConvSpec, Epilogue
from tvm_winograd.choose.select import Choice
from tvm_winograd.codegen import held_loads
from tvm_winograd.gpu import Hardware, make_target
from tvm_winograd.passes.apply_schedules import schedule_function
from tvm_winograd.schedules.base.kernel import Kernel

_INT32 = range(-(2**31), 2**31)
_BLOCKS = {"blockIdx.x": 2**31 - 1, "blockIdx.y": 65535, "blockIdx.z": 65535}
_GROWING = ("Add", "Sub", "Mul", "LShift")
_OPERANDS = (
    "a", "b", "value", "condition", "true_value", "false_value", "base", "args", "indices",
)  # fmt: skip


def misfits(
    kernel: Kernel, spec: ConvSpec, epilogue: Epilogue, config: Any, hw: Hardware
) -> list[str]:
    """What does not fit, in words: an index, a copy's bytes, a grid, a workspace's bytes."""
    search, (host, *devices) = _Search(), lowered(kernel, spec, epilogue, config, hw)
    for func in host.functions.values():
        search.statement(func.body)
    on_host = dict(search.met)
    for device in devices:
        for func in device.functions.values():
            search.kernel(func, on_host)
    return list(dict.fromkeys(search.misfits))


def lowered(
    kernel: Kernel, spec: ConvSpec, epilogue: Epilogue, config: Any, hw: Hardware
) -> list[tvm.IRModule]:
    """The host's and the device's functions, as TVM's code generators get them."""
    with make_target(hw):
        func = kernel.prim_func(spec, epilogue, config)
        done, _ = schedule_function(func, Choice(kernel, config, "", ""), hw)
    return lowered_function(done, hw, kernel.pass_config)


def lowered_function(
    done: Any, hw: Hardware, pass_config: dict[str, Any] | None = None
) -> list[tvm.IRModule]:
    """The same of a scheduled PrimFunc."""
    target = make_target(hw)
    context = tvm.transform.PassContext(
        opt_level=3, config=pass_config, disabled_pass=["s_tir.LowerAsyncDMA"]
    )
    with target, context:
        mod = tvm.IRModule({"main": done.with_attr("global_symbol", "main")})
        held_loads.install()
        lower, finish_host, finish = tirx.get_tir_pipeline(held_loads.PIPELINE)
        mod = lower(tirx.transform.BindTarget(target.with_host("llvm"))(mod))
        host, devices = split_host_device_mods(mod)
        return [finish_host()(host), *(finish()(device) for device in devices.values())]


@dataclass
class _Search:
    misfits: list[str] = field(default_factory=list)
    bounds: Any = field(default_factory=tvm.sym.Analyzer)  # of the variables met so far
    met: dict[str, tvm.ir.Var] = field(default_factory=dict)  # these, by name

    def kernel(self, func: Any, on_host: dict[str, tvm.ir.Var]) -> None:
        for param in func.params:
            if param.name in on_host:  # of a loop around the launch
                self._bind(param, on_host[param.name])
        self.statement(func.body)

    def statement(self, stmt: Any) -> None:
        if isinstance(stmt, tirx.AttrStmt) and stmt.attr_key == "thread_extent":
            self._threads(stmt.node, int(stmt.value))
        elif isinstance(stmt, tirx.For):
            self._bind(stmt.loop_var, Range.from_min_extent(stmt.min, stmt.extent))
        elif isinstance(stmt, tirx.Bind):
            # the host's arguments come out of calls
            if "int" in str(stmt.var.ty) and not isinstance(stmt.value, Call):
                self._bind(stmt.var, stmt.value)
        elif isinstance(stmt, tirx.DeclBuffer) and calls(stmt.data, "TVMBackendAllocWorkspace"):
            self._workspace(stmt.buffer, int(stmt.data.args[2]))
        for expr in children(stmt, "value", "condition", "extent", "indices"):
            self.expression(expr)
        if isinstance(stmt, tirx.IfThenElse):
            with self.bounds.constraint_scope(stmt.condition):
                self.statement(stmt.then_case)
        for inner in children(stmt, "seq", "body", "else_case"):
            self.statement(inner)

    def expression(self, expr: Any) -> None:
        if type(expr).__name__ in _GROWING and str(expr.ty).startswith("int32"):
            self._fits(expr, 1)
        if calls(expr, "s_tir.cp_async_raw"):
            # the code generator's helper multiplies an index with the element's size, as an int
            for pointer, index in (expr.args[:2], expr.args[2:4]):
                self._fits(index, tvm.DataType(pointer.ty.element_type.dtype).itemsize)
        for operand in children(expr, *_OPERANDS):
            if hasattr(operand, "ty"):
                self.expression(operand)

    def _bind(self, var: Any, value: Any) -> None:
        self.bounds.bind(var, value)
        self.met[var.name] = var

    def _fits(self, expr: Any, size: int) -> None:
        bound = self.bounds.const_int_bound(expr)
        for value in (size * bound.min_value, size * bound.max_value):
            if value not in _INT32:
                self.misfits.append(f"{size} * ({expr}) may be {value}")

    def _threads(self, axis: Any, extent: int) -> None:
        self._bind(axis.var, Range(0, extent))
        if extent > _BLOCKS.get(axis.thread_tag, 1024):
            self.misfits.append(f"{extent} along {axis.thread_tag}")

    def _workspace(self, buffer: Any, size: int) -> None:
        needed = math.prod(map(int, buffer.shape)) * tvm.DataType(buffer.dtype).itemsize
        if size != needed:
            self.misfits.append(f"{buffer.name} has {size} bytes and needs {needed}")


def calls(expr: Any, name: str) -> bool:
    return isinstance(expr, Call) and getattr(expr.op, "name", "") == f"tirx.{name}"


def children(node: Any, *names: str) -> Iterator[Any]:
    for name in names:
        child = getattr(node, name, None)
        if child is not None and not isinstance(child, str):
            yield from child if hasattr(child, "__len__") else [child]
