"""The inputs and parameters of a network under names that are identifiers in C.

TVM names the arguments of a kernel after them: "3.weight", the fourth layer of a plain
torch.nn.Sequential, would be 3_weight_ptr in CUDA, which no compiler takes.
"""

from __future__ import annotations

import re

import tvm
from tvm import relax

from ..ir.rebuild import function_with


def name_variables(mod: tvm.IRModule) -> tvm.IRModule:
    """`mod` with the parameters of "main" renamed where need be; their order stays."""
    main = mod["main"]
    renamed = {v: relax.Var(_identifier(v.name), v.ty) for v in main.params}
    new = {v: w for v, w in renamed.items() if v.name != w.name}
    if not new:
        return mod
    body = main.bind_params(new).body
    params = [new.get(v, v) for v in main.params]
    mod = mod.clone()
    mod["main"] = function_with(main, params, body)
    return mod


def _identifier(name: str) -> str:
    word = re.sub(r"\W", "_", name, flags=re.ASCII)
    return word if re.match(r"[A-Za-z_]", word) else f"p_{word}"
