"""cuDNN's forward convolutions by ctypes: the functions, their constants, and one convolution.

Source: cuDNN 9 API reference, "cudnn_cnn" and "cudnn_ops" libraries (the legacy API: each
algorithm by name, where the graph API would choose one by itself).
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from ..deploy.libraries import load
from ..errors import DeviceError, UnsupportedError
from ..shapes import ConvSpec, Epilogue

LIBRARY = "libcudnn.so.9"
# cudnnConvolutionFwdAlgo_t, by its values
ALGORITHMS = (
    "IMPLICIT_GEMM", "IMPLICIT_PRECOMP_GEMM", "GEMM", "DIRECT", "FFT", "FFT_TILING", "WINOGRAD",
    "WINOGRAD_NONFUSED",
)  # fmt: skip

_NCHW, _FLOAT, _CROSS_CORRELATION, _FMA_MATH = 0, 0, 1, 3
_RELU, _IDENTITY, _PROPAGATE_NAN = 1, 5, 1
_NOT_SUPPORTED = 3  # status // 1000: cuDNN 9 has a number for each reason
_SHOWN = 300  # characters of cuDNN's last error


def load_cudnn() -> ctypes.CDLL | None:
    """Finds cuDNN: torch's, or on the path, or of nvidia's wheels; None if nowhere."""
    with suppress(ImportError):
        import torch  # noqa: F401  finds the libraries that cuDNN's parts need
    for candidate in _candidates():
        try:
            return load(candidate)
        except OSError:
            continue
    return None


def _candidates() -> Iterator[str | Path]:
    yield LIBRARY
    spec = importlib.util.find_spec("nvidia")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        yield Path(place) / "cudnn" / "lib" / LIBRARY


class Cudnn:
    """cuDNN's functions by their names without "cudnn"; failures raise."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def __call__(self, name: str, *arguments: Any) -> None:
        """Raises:
        UnsupportedError: cuDNN says that it does not support this.  DeviceError: it failed.
        """
        status = int(getattr(self._library, f"cudnn{name}")(*arguments))
        if not status:
            return
        text = f"cudnn{name}: {self._reason(status)} ({status})"
        if status // 1000 == _NOT_SUPPORTED:
            raise UnsupportedError(text)
        raise DeviceError(text)

    def version(self) -> str:
        """E.g. "9.19.0"."""
        function = self._library.cudnnGetVersion
        function.restype = ctypes.c_size_t
        number = int(function())
        return f"{number // 10000}.{number // 100 % 100}.{number % 100}"

    def create(self, made: ExitStack, kind: str, *values: Any, setter: str = "") -> ctypes.c_void_p:
        """Makes a handle or descriptor, freed with `made`; `setter` describes it by `values`."""
        descriptor = ctypes.c_void_p()
        self(f"Create{kind}", ctypes.byref(descriptor))
        made.callback(self, f"Destroy{kind}", descriptor)
        if setter:
            self(setter, descriptor, *values)
        return descriptor

    def _reason(self, status: int) -> str:
        describe = self._library.cudnnGetErrorString
        describe.restype = ctypes.c_char_p
        more = ctypes.create_string_buffer(_SHOWN)
        self._library.cudnnGetLastErrorString(more, ctypes.c_size_t(_SHOWN))
        text: bytes = describe(status)
        return " ".join(f"{text.decode()} {more.value.decode(errors='replace')}".split())


class ForwardConv:
    """One convolution with its epilogue: NCHW, float32, FMA arithmetic (no TF32).

    With an epilogue it is cuDNN's fused one, cudnnConvolutionBiasActivationForward.
    """

    def __init__(
        self, cudnn: Cudnn, made: ExitStack, stream: int, spec: ConvSpec, epilogue: Epilogue
    ) -> None:
        """Raises:
        UnsupportedError: padding that differs from side to side, an activation but ReLU.
        """
        top, left, bottom, right = spec.padding
        if (top, left) != (bottom, right):
            raise UnsupportedError(f"cuDNN pads both sides alike, this is {spec.padding}")
        if epilogue.activation not in (None, "relu"):
            raise UnsupportedError(
                f"cuDNN's fused convolution has ReLU or nothing, not {epilogue.activation}"
            )
        self._cudnn, self._epilogue = cudnn, epilogue
        self._handle = cudnn.create(made, "")
        cudnn("SetStream", self._handle, ctypes.c_void_p(stream))
        self._x = self._tensor(made, spec.n, spec.c, spec.h, spec.w)
        self._y = self._tensor(made, spec.n, spec.k, spec.oh, spec.ow)
        self._bias = self._tensor(made, 1, spec.k, 1, 1)
        shape = (_FLOAT, _NCHW, *spec.weight_shape)
        self._w = cudnn.create(made, "FilterDescriptor", *shape, setter="SetFilter4dDescriptor")
        numbers = (top, left, *spec.strides, *spec.dilations, _CROSS_CORRELATION, _FLOAT)
        self._conv = cudnn.create(
            made, "ConvolutionDescriptor", *numbers, setter="SetConvolution2dDescriptor"
        )
        cudnn("SetConvolutionGroupCount", self._conv, spec.groups)
        cudnn("SetConvolutionMathType", self._conv, _FMA_MATH)
        values = (_RELU if epilogue.relu else _IDENTITY, _PROPAGATE_NAN, ctypes.c_double(0.0))
        self._activation = cudnn.create(
            made, "ActivationDescriptor", *values, setter="SetActivationDescriptor"
        )

    def workspace_bytes(self, algorithm: int) -> int:
        """Raises:
        UnsupportedError: the algorithm cannot compute this.
        """
        size = ctypes.c_size_t()
        described = (self._handle, self._x, self._w, self._conv, self._y, algorithm)
        self._cudnn("GetConvolutionForwardWorkspaceSize", *described, ctypes.byref(size))
        return size.value

    def run(self, algorithm: int, arrays: Sequence[int], workspace: tuple[int, int]) -> None:
        """Launch it.

        Args:
            arrays: device addresses of x, w, bias, residual, y; the third and fourth are read
                with an epilogue only.
            workspace: its address and bytes.
        """
        x, w, bias, residual, y = map(ctypes.c_void_p, arrays)
        one, zero = ctypes.byref(ctypes.c_float(1.0)), ctypes.byref(ctypes.c_float(0.0))
        memory = ctypes.c_void_p(workspace[0]), ctypes.c_size_t(workspace[1])
        head = (self._handle, one, self._x, x, self._w, w)
        body = (self._conv, algorithm, *memory)
        out = (self._y, y)
        if self._epilogue == Epilogue():
            self._cudnn("ConvolutionForward", *head, *body, zero, *out)
            return
        added = (one if self._epilogue.residual else zero, self._y, residual)
        rest = (self._bias, bias, self._activation)
        self._cudnn("ConvolutionBiasActivationForward", *head, *body, *added, *rest, *out)

    def _tensor(self, made: ExitStack, *shape: int) -> ctypes.c_void_p:
        values = (_NCHW, _FLOAT, *shape)
        return self._cudnn.create(made, "TensorDescriptor", *values, setter="SetTensor4dDescriptor")
