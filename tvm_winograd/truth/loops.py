"""Loop nests (PrimFuncs) among relax operators, run as they are for the interpreter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..errors import UnsupportedError

Run = Callable[[Any, Sequence[np.ndarray]], np.ndarray]


def compile_loops(function: Any) -> Run:
    """(the relax.call_tir, its tensors) -> its one output, computed in the loops' own dtypes.

    Raises:
        UnsupportedError: TVM cannot compile the loops for this CPU.
    """
    import tvm

    name = str(function.attrs.get("global_symbol", "loops"))
    try:
        main = function.with_attr("global_symbol", "main")
        compiled = tvm.compile(tvm.IRModule({"main": main}), target="llvm")
    except (RuntimeError, ValueError, TypeError) as error:
        raise UnsupportedError(f"the loops {name} are not evaluated: TVM refuses them") from error

    def run(call: Any, arrays: Sequence[np.ndarray]) -> np.ndarray:
        out = call.ty
        if not hasattr(out, "dtype"):
            raise UnsupportedError(f"the loops {name} with several outputs are not evaluated")
        dtypes = [str(arg.ty.dtype) for arg in call.args[1].fields]
        given = [
            tvm.runtime.tensor(np.ascontiguousarray(a.astype(d)))
            for a, d in zip(arrays, dtypes, strict=True)
        ]
        made = np.empty([int(dim) for dim in out.shape.values], str(out.dtype))
        target = tvm.runtime.tensor(made)
        compiled["main"](*given, target)
        return target.numpy()

    return run
