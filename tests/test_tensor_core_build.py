"""The tensor-core kernels as machine code, made without a GPU, and run on one if there is one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from convs import expected, poison, random_arrays
from gpu import needs_gpu
from tensor_core_cases import BASE, CASES, EXTREMES, NARROW, NONE, SMALL, extreme
from test_tensor_core import LIMIT, bits_of_peaks, check_extreme

from tvm_winograd.choose.select import Choice
from tvm_winograd.codegen import build, nvrtc
from tvm_winograd.codegen.cubin import resources
from tvm_winograd.conv import CompiledConv
from tvm_winograd.gpu import gpu_for
from tvm_winograd.passes.plan_workspaces import hoist_workspaces
from tvm_winograd.schedules.tensor_core import KERNEL, kernel, pack, search
from tvm_winograd.schedules.tensor_core.config import TensorCore
from tvm_winograd.shapes import ConvSpec, Epilogue
from tvm_winograd.truth import reference

SM90 = gpu_for("sm_90")
LARGE = replace(BASE, n=128, c=64, h=56, w=56, k=64)
MOST_SPILLED = 128  # bytes: outside of the loop over steps
BOTH = kernel.Peaks(given=False, written=True)


def built(spec: ConvSpec, epilogue: Epilogue, config: TensorCore, peaks: kernel.Peaks) -> Any:
    """(the executable, the workspaces of its function "conv")."""
    import tvm

    func, workspaces = hoist_workspaces(kernel.prim_func(spec, epilogue, config, peaks))
    functions = {"conv": func, "pack": kernel.weight_func(spec, config)}
    mod = tvm.IRModule({n: f.with_attr("global_symbol", n) for n, f in functions.items()})
    return build.build(mod, SM90, pipeline="tir"), workspaces


@pytest.mark.parametrize("k", [64, 128])
@pytest.mark.parametrize("r", [1, 3])
def test_ptxas_keeps_the_pipeline(k: int, r: int) -> None:
    spec = replace(LARGE, k=k, r=r, s=r, padding=r // 2)
    built(
        spec, Epilogue(bias=True, relu=True), search.default(spec, SM90), kernel.Peaks(given=True)
    )
    done = nvrtc.last_compilation()
    assert done is not None and done.arch == "sm_90a"
    # C7508: setmaxnreg ignored, C7512 and C7514: products wait for each other
    assert "Potential Performance Loss" not in done.log
    assert all(
        (found.spill_stores or 0) <= MOST_SPILLED for found in resources(done.binary, done.log)
    )


def test_one_convolution_without_a_network() -> None:
    choice = Choice(KERNEL, SMALL, "explicit", "asked for")
    conv = CompiledConv(BASE, NONE, SM90, choice)
    assert "tensor_core::convolve" in conv.source()
    assert conv.schedule["shared_bytes"] == SMALL.shared_bytes


def on_gpu(
    spec: ConvSpec, epilogue: Epilogue, config: TensorCore, arrays: list[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """(y, bits of max|y| of each image), all memory poisoned before."""
    import tvm

    executable, workspaces = built(spec, epilogue, config, BOTH)

    def tensor(array: np.ndarray) -> Any:
        return tvm.runtime.tensor(array, tvm.cuda(0))

    x, w, *extra = arrays
    a = tensor(np.full(pack.shape(spec, config), 0x7FC00000, "uint32"))
    executable["pack"](tensor(w), a)
    np.testing.assert_array_equal(a.numpy(), pack.pack_weights(w, spec, config))
    y, peaks = tensor(poison(spec.output_shape, "float32")), tensor(np.zeros(spec.n, "uint32"))
    work = [tensor(np.full(s.shape, 0x7FC00000, "uint32").view(s.dtype)) for s in workspaces]
    executable["conv"](tensor(x), a, *map(tensor, extra), y, peaks, *work)
    return y.numpy(), peaks.numpy()


@needs_gpu
@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_is_the_convolution_on_a_gpu(name: str) -> None:
    spec, epilogue, config = CASES[name]
    arrays = random_arrays(spec, epilogue)
    y, peaks = on_gpu(spec, epilogue, config, arrays)
    assert reference.relative_error(y, expected(spec, epilogue, arrays)) < LIMIT
    np.testing.assert_array_equal(peaks, bits_of_peaks(y))


@needs_gpu
@pytest.mark.gpu
@pytest.mark.parametrize("kind", EXTREMES)
def test_scales_on_a_gpu(kind: str) -> None:
    spec, epilogue, arrays = extreme(kind)
    y, peaks = on_gpu(spec, epilogue, replace(NARROW, stages=4), arrays)
    check_extreme(y, expected(spec, epilogue, arrays))
    np.testing.assert_array_equal(peaks, bits_of_peaks(y))
