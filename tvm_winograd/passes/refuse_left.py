"""Operators that no pass has lowered, such as sort, topk and cumsum, refused by name.

TVM would find them only when it makes code, and name a pass of its own to run.
"""

from __future__ import annotations

import tvm

from ..errors import UnsupportedError
from ..ir.bindings import op_name

_RUNS = ("relax.call_tir", "relax.reshape")  # on the virtual machine: a kernel, a view


def refuse_left(mod: tvm.IRModule) -> None:
    """Check "main" behind LegalizeOps.

    Raises:
        UnsupportedError: an operator is left in it.
    """
    left = {}
    for block in mod["main"].body.blocks:
        for binding in block.bindings:
            name = op_name(binding.value)
            if name and name not in _RUNS:
                left[name.removeprefix("relax.")] = binding.var.name
    if left:
        named = ", ".join(f"{name} (of {variable!r})" for name, variable in left.items())
        raise UnsupportedError(
            f"no kernel can be made for {named}: export the network without it, and compute it "
            "from the outputs"
        )
