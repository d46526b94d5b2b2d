"""Compile one config of a CPU kernel, run it on poisoned memory, compare with float64."""

from __future__ import annotations

from typing import Any

import numpy as np
from convs import expected, poison, random_arrays

from tvm_winograd.gpu import Cpu, host_cpu, make_target
from tvm_winograd.schedules.base.kernel import Kernel
from tvm_winograd.shapes import ConvSpec, Epilogue
from tvm_winograd.truth import reference
from tvm_winograd.truth.tolerances import tolerance

BASELINE = Cpu("x86-64", 128, 2)  # any 64-bit x86: SSE2, no FMA, no float16 conversion


def hardware(name: str) -> Cpu:
    """This machine, or what every x86-64 machine can run."""
    return host_cpu() if name == "host" else BASELINE


def compile_config(
    kernel: Kernel, spec: ConvSpec, epilogue: Epilogue, config: Any, cpu: Any
) -> Any:
    import tvm
    from tvm import s_tir

    sch = s_tir.Schedule(kernel.prim_func(spec, epilogue, config))
    kernel.schedule(sch, config, cpu)
    with tvm.transform.PassContext(config=kernel.pass_config):
        return tvm.compile(sch.mod, target=make_target(cpu))


def error_of(kernel: Kernel, spec: ConvSpec, epilogue: Epilogue, config: Any, cpu: Any) -> float:
    """Relative error; infinite when an element was not written."""
    import tvm

    arrays = random_arrays(spec, epilogue)
    x, w, *rest = arrays
    packed = kernel.pack_weights(w, spec, config)
    out = tvm.runtime.tensor(poison(spec.output_shape, spec.out_dtype))
    run = compile_config(kernel, spec, epilogue, config, cpu)["main"]
    run(*(tvm.runtime.tensor(np.ascontiguousarray(a)) for a in (x, packed, *rest)), out)
    return reference.relative_error(out.numpy(), expected(spec, epilogue, arrays))


def check(kernel: Kernel, spec: ConvSpec, epilogue: Epilogue, config: Any, cpu: Any) -> None:
    error = error_of(kernel, spec, epilogue, config, cpu)
    limit = tolerance(spec, kernel.algorithm)
    assert error <= limit, f"error {error:.1e} > {limit:.1e}: {spec.key()} {config}"


def packed_on_the_device(kernel: Kernel, spec: ConvSpec, config: Any) -> tuple[Any, Any]:
    """(weights packed by weight_func, packed by pack_weights)."""
    import tvm

    (_, w) = random_arrays(spec, Epilogue())
    want = kernel.pack_weights(w, spec, config)
    out = tvm.runtime.tensor(np.full(want.shape, 77).astype(want.dtype))
    tvm.compile(kernel.weight_func(spec, config), target="llvm")["main"](tvm.runtime.tensor(w), out)
    return out.numpy(), want
