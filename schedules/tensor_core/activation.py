"""An activation as a C++ functor, from the expression of its table entry."""

from __future__ import annotations

import re
from typing import Any

from tvm_winograd.activation import Applied
from tvm_winograd.errors import UnsupportedError

NAMESPACE = "tensor_core"
IDENTITY = f"{NAMESPACE}::Identity"
_BINARY = {
    "Add": "({} + {})", "Sub": "({} - {})", "Mul": "({} * {})", "Div": "({} / {})",
    "LT": "({} < {})", "GT": "({} > {})", "LE": "({} <= {})", "GE": "({} >= {})",
    # a NaN in the first place stays, as in the other kernels' text it does not
    "Max": "larger({}, {})", "Min": "smaller({}, {})",
}  # fmt: skip
_CALLS = {"exp": "expf", "erf": "erff", "tanh": "tanhf", "log": "logf", "sqrt": "sqrtf"}


def name_of(applied: Applied | None) -> str:
    """The C++ type of an activation, of `IDENTITY` for none."""
    if applied is None:
        return IDENTITY
    word = re.sub(r"[^A-Za-z0-9_]", lambda found: f"_{ord(found[0])}_", applied.text)
    return f"{NAMESPACE}::Activation_{word}"


def text_of(applied: Applied | None) -> str:
    """The CUDA text that defines it.

    Raises:
        UnsupportedError: the table's expression has a part that is not written here.
    """
    if applied is None:
        return ""
    from tvm import tirx

    name = name_of(applied).rpartition("::")[2]
    body = _written(applied.tir(tirx.Var("v", "float32")))
    return (
        f"#ifndef {name.upper()}\n#define {name.upper()}\nnamespace {NAMESPACE} {{\n"
        f"struct {name} {{ static DEVICE float apply(float v) {{ return {body}; }} }};\n"
        "}\n#endif\n"
    )


def missing(applied: Applied | None) -> str | None:
    """None, or why an activation has no functor."""
    try:
        text_of(applied)
    except UnsupportedError as error:
        return str(error)
    return None


def _written(expr: Any) -> str:
    """An expression of float32 values in C++."""
    kind = type(expr).__name__
    if kind in _BINARY:
        return _BINARY[kind].format(_written(expr.a), _written(expr.b))
    if kind in ("FloatImm", "IntImm"):
        return f"{float(expr.value)!r}f"
    if kind == "Var":
        return str(expr.name)
    if kind == "Select":
        parts = (expr.condition, expr.true_value, expr.false_value)
        return "({} ? {} : {})".format(*map(_written, parts))
    if kind == "Call" and (function := _CALLS.get(expr.op.name.rpartition(".")[2])):
        return f"{function}({_written(expr.args[0])})"
    raise UnsupportedError(f"no kernel on tensor cores writes {kind} ({expr}) of an activation")
