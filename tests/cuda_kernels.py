"""A config of a CUDA kernel without a GPU: run serially on the CPU, compiled, kept in bounds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from convs import FULL, expected, poison, random_arrays
from serial import serialise

from tvm_winograd.choose.select import choose
from tvm_winograd.codegen import build, nvrtc
from tvm_winograd.gpu import Gpu, gpu_for
from tvm_winograd.schedules.base.kernel import Kernel, config_dict
from tvm_winograd.shapes import ConvSpec, Epilogue
from tvm_winograd.truth import reference
from tvm_winograd.truth.tolerances import tolerance

HERE = Path(__file__).parent
SM90 = gpu_for("sm_90")
_COMPILED: dict[tuple, nvrtc.Compilation] = {}


def run(mod: Any, arrays: list[np.ndarray], shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """main(*arrays, out) on the CPU; out starts poisoned."""
    import tvm

    out = tvm.runtime.tensor(poison(shape, dtype))
    tvm.compile(mod, target="llvm")(*map(tvm.runtime.tensor, arrays), out)
    return out.numpy()


def scheduled(
    kernel: Kernel, spec: ConvSpec, epilogue: Epilogue, config: Any, gpu: Gpu = SM90
) -> Any:
    """The final module, as it would be built."""
    from tvm import s_tir

    sch = s_tir.Schedule(kernel.prim_func(spec, epilogue, config))
    kernel.schedule(sch, config, gpu)
    return sch.mod


def check(kernel: Kernel, spec: ConvSpec, epilogue: Epilogue, config: Any) -> None:
    """The scheduled program, run serially, is the convolution."""
    assert kernel.illegal(config, spec, SM90) is None
    arrays = random_arrays(spec, epilogue)
    x, w, *extra = arrays
    packed = kernel.pack_weights(w, spec, config)
    mod = serialise(scheduled(kernel, spec, epilogue, config))
    got = run(mod, [x, packed, *extra], spec.output_shape, spec.out_dtype)
    error = reference.relative_error(got, expected(spec, epilogue, arrays))
    assert error <= tolerance(spec, kernel.algorithm)


def compiled(
    kernel: Kernel, spec: ConvSpec, config: Any, arch: str, epilogue: Epilogue = FULL
) -> nvrtc.Compilation:
    """The machine code, made once per process."""
    key = (kernel.name, spec, config, arch, epilogue)
    if key not in _COMPILED:
        gpu = gpu_for(arch)
        mod = scheduled(kernel, spec, epilogue, config, gpu)
        build.build(mod, gpu, pipeline="tir", pass_config=kernel.pass_config)
        done = nvrtc.last_compilation()
        assert done is not None
        _COMPILED[key] = done
    return _COMPILED[key]


def check_bounds(
    spec: ConvSpec, algorithm: str, kernel: Kernel | None = None, config: Any = None
) -> None:
    """The chosen kernel for sm_90 (or this one) runs between unreadable pages, and is right."""
    command = [sys.executable, str(HERE / "guarded.py"), spec.key(), FULL.key(), "sm_90", algorithm]
    if kernel is not None:
        command += [kernel.name, json.dumps(config_dict(config))]
    done = subprocess.run(command, capture_output=True, text=True, cwd=HERE)
    assert done.returncode == 0, f"exit {done.returncode} (-11: outside)\n{done.stderr[-2000:]}"
    chosen = choose(spec, FULL, SM90, algorithm=algorithm, config=config)
    assert float(done.stdout) <= tolerance(spec, chosen.algorithm)
