"""The data of one convolution: random arrays, the float64 result, and both on the GPU."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from tvm_winograd.errors import UnsupportedError
from tvm_winograd.shapes import ConvSpec, Epilogue
from tvm_winograd.truth import peers, reference


class Problem:
    """Zero-mean arrays (positive data hide errors) that give outputs of variance about 1.

    Kept as NCHW; every provider gets them, and is compared, in the layout it runs on.
    """

    def __init__(self, spec: ConvSpec, epilogue: Epilogue, seed: int = 0) -> None:
        """Raises:
        UnsupportedError: another dtype than float32.
        """
        if spec.dtype != "float32":
            raise UnsupportedError(f"{spec.key()}: this benchmark is of float32 convolutions")
        self.spec, self.epilogue = spec, epilogue
        nchw = replace(spec, layout="NCHW")
        rng = np.random.default_rng(seed)
        shapes = {"x": nchw.input_shape, "w": nchw.weight_shape}
        shapes |= {"bias": (spec.k,)} if epilogue.bias else {}
        shapes |= {"residual": nchw.output_shape} if epilogue.residual else {}
        self._arrays = {n: rng.standard_normal(s, "float32") for n, s in shapes.items()}
        self._arrays["w"] *= np.float32((spec.c // spec.groups * spec.r * spec.s) ** -0.5)
        self._tensors: dict[tuple[str, str], Any] = {}
        self._poison: dict[str, Any] = {}  # layout -> copied on the GPU for each output

    @cached_property
    def want(self) -> np.ndarray:
        """The result in float64, NCHW."""
        spec = replace(self.spec, layout="NCHW")
        conv = peers.cuda_conv64 if peers.has_torch_cuda() else reference.conv2d
        y = conv(spec, self._arrays["x"], self._arrays["w"])
        rest = {name: self._arrays.get(name) for name in ("bias", "residual")}
        return reference.apply_epilogue(spec, self.epilogue, y, **rest)

    def tensors(self, layout: str = "NCHW") -> list[Any]:
        """x, w[, bias][, residual] on the GPU; x and residual in `layout`."""
        return [self._tensor(name, layout) for name in self._arrays]

    def poisoned(self, layout: str = "NCHW") -> Any:
        """A new output on the GPU, full of NaN: what is not written shows."""
        if layout not in self._poison:
            shape = replace(self.spec, layout=layout).output_shape
            self._poison[layout] = _on_gpu(np.full(shape, np.nan, "float32"))
        poison = self._poison[layout]
        return poison.copyto(poison.device)

    def error(self, got: np.ndarray, layout: str = "NCHW") -> float:
        """Relative Frobenius error of a result in `layout`; infinite if it is not finite."""
        return reference.relative_error(reference.to_nchw(got, layout), self.want)

    def _tensor(self, name: str, layout: str) -> Any:
        maps = name in ("x", "residual")
        key = (name, layout if maps else "")
        if key not in self._tensors:
            array = self._arrays[name]
            self._tensors[key] = _on_gpu(reference.from_nchw(array, layout) if maps else array)
        return self._tensors[key]


def _on_gpu(array: np.ndarray) -> Any:
    import tvm

    return tvm.runtime.tensor(array, tvm.device("cuda", 0))
