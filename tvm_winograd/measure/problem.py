"""One convolution with data: zero-mean arrays, the float64 result, and both on a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from ..deploy.arguments import numpy_dtype
from ..shapes import ConvSpec, Epilogue
from ..truth import peers, reference


class Problem:
    """Random arrays (zero-mean: positive data hide errors) that give outputs of variance about 1.

    Arrays are NCHW; whoever computes the convolution gets them, and is compared, in the layout it
    runs on. Nothing is on the device before it is asked for.
    """

    def __init__(
        self, spec: ConvSpec, epilogue: Epilogue, device: str = "cuda", seed: int = 0
    ) -> None:
        """
        Args:
            device: "cuda" or "cpu", where tensors are made; with "cuda" and torch there the float64
                result is computed on it too.
        """
        self.spec, self.epilogue, self._device = spec, epilogue, device
        nchw = replace(spec, layout="NCHW")
        rng = np.random.default_rng(seed)
        fan_in = spec.c // spec.groups * spec.r * spec.s
        self.arrays = {  # name -> array; in the order of a kernel's arguments
            "x": _random(rng, nchw.input_shape, spec.dtype),
            "w": _random(rng, spec.weight_shape, spec.dtype, fan_in**-0.5),
        }
        if epilogue.bias:
            self.arrays["bias"] = _random(rng, (spec.k,), spec.acc)
        if epilogue.residual:
            self.arrays["residual"] = _random(rng, nchw.output_shape, spec.out_dtype)
        self._tensors: dict[tuple[str, str], Any] = {}
        self._poison: dict[str, Any] = {}  # layout -> copied on the device for each output

    @cached_property
    def want(self) -> np.ndarray:
        """The result in float64, NCHW."""
        spec = replace(self.spec, layout="NCHW")
        fast = self._device == "cuda" and spec.acc == "float32"
        conv = peers.best_conv64() if fast else reference.conv2d
        y = conv(spec, self.arrays["x"], self.arrays["w"])
        rest = {name: self.arrays.get(name) for name in ("bias", "residual")}
        return reference.apply_epilogue(spec, self.epilogue, y, **rest)

    def array(self, name: str, layout: str = "NCHW") -> np.ndarray:
        """Returns one of `arrays`; x and residual in `layout`."""
        array = self.arrays[name]
        return reference.from_nchw(array, layout) if name in ("x", "residual") else array

    def tensors(self, layout: str = "NCHW") -> list[Any]:
        """Copies x, w[, bias][, residual] to the device, once; x and residual in `layout`."""
        return [self._tensor(name, layout) for name in self.arrays]

    def poisoned(self, layout: str = "NCHW") -> Any:
        """Makes a new output on the device, filled with `poison`."""
        if layout not in self._poison:
            shape = replace(self.spec, layout=layout).output_shape
            self._poison[layout] = self.on_device(poison(shape, self.spec.out_dtype))
        full = self._poison[layout]
        return full.copyto(full.device)

    def on_device(self, array: np.ndarray) -> Any:
        """Copies an array into a TVM tensor."""
        import tvm

        return tvm.runtime.tensor(array, tvm.device(self._device, 0))

    def error(self, got: np.ndarray, layout: str = "NCHW") -> float:
        """Finds the relative Frobenius error of a result in `layout`; infinite if not finite."""
        return reference.relative_error(reference.to_nchw(got, layout), self.want)

    def _tensor(self, name: str, layout: str) -> Any:
        key = (name, layout if name in ("x", "residual") else "")
        if key not in self._tensors:
            self._tensors[key] = self.on_device(self.array(name, layout))
        return self._tensors[key]


def poison(shape: Sequence[int], dtype: str) -> np.ndarray:
    """Makes an array of NaN (of integers: the least one): what is not written over shows."""
    kind = numpy_dtype(dtype)
    return np.full(tuple(shape), np.iinfo(kind).min if kind.kind == "i" else np.nan, kind)


def _random(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: str, scale: float = 1.0
) -> np.ndarray:
    if dtype in ("int8", "int32"):
        return rng.integers(-128, 128, shape).astype(dtype)
    return (rng.standard_normal(shape, "float32") * np.float32(scale)).astype(numpy_dtype(dtype))
