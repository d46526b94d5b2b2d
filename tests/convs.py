"""Random convolutions, run and compared with float64; every output poisoned first."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from tvm_winograd import ConvSpec, Epilogue
from tvm_winograd.truth import reference

FULL = Epilogue(bias=True, residual=True, relu=True)
_DTYPES = {"bfloat16": ml_dtypes.bfloat16}


def random_arrays(spec: ConvSpec, epilogue: Epilogue, seed: int = 0) -> list[np.ndarray]:
    """x, w[, bias][, residual]: zero-mean, weights scaled to give outputs of variance 1.

    Before any activation but ReLU it is 36: a sixth of the outputs reach 6, as many -6.
    """
    rng = np.random.default_rng(seed)

    def draw(shape, dtype, scale=1.0):
        if dtype in ("int8", "int32"):
            return rng.integers(-128, 128, shape).astype(dtype)
        return (rng.standard_normal(shape) * scale).astype(_DTYPES.get(dtype, dtype))

    fan_in = spec.c // spec.groups * spec.r * spec.s
    arrays = [
        draw(spec.input_shape, spec.dtype),
        draw(
            spec.weight_shape,
            spec.dtype,
            (1 if epilogue.activation in (None, "relu") else 6) * fan_in**-0.5,
        ),
    ]
    if epilogue.bias:
        arrays.append(draw((spec.k,), spec.acc))
    if epilogue.residual:
        arrays.append(draw(spec.output_shape, spec.out_dtype))
    return arrays


def expected(spec: ConvSpec, epilogue: Epilogue, arrays: list[np.ndarray]) -> np.ndarray:
    """The float64 result."""
    x, w, *rest = arrays
    bias = rest.pop(0) if epilogue.bias else None
    residual = rest.pop(0) if epilogue.residual else None
    y = reference.conv2d(spec, x, w)
    return reference.apply_epilogue(spec, epilogue, y, bias, residual)


def poison(shape, dtype) -> np.ndarray:
    """NaN (or the smallest integer): what an unwritten element would show."""
    if dtype == "int32":
        return np.full(shape, np.iinfo("int32").min, dtype)
    return np.full(shape, np.nan, _DTYPES.get(dtype, dtype))


def error_of(compiled, seed: int = 0) -> float:
    """Relative error of a CompiledConv on random data, its output poisoned first."""
    import tvm

    spec, epilogue = compiled.spec, compiled.epilogue
    arrays = random_arrays(spec, epilogue, seed)
    x, w, *rest = arrays
    out = tvm.runtime.tensor(poison(spec.output_shape, spec.out_dtype), compiled.device)
    compiled.run(x, compiled.pack(w), *rest, out=out)
    return reference.relative_error(out.numpy(), expected(spec, epilogue, arrays))
