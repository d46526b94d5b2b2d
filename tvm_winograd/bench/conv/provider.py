"""What a provider is: something that computes a convolution in one or several ways."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tvm_winograd.gpu import Gpu
from tvm_winograd.measure.builds import Build
from tvm_winograd.measure.cuda_timing import CudaTimer
from tvm_winograd.shapes import ConvSpec, Epilogue
from tvm_winograd.tables import lookup as logs

from .problem import Problem

# A peer's result is wrong beyond the limit of this algorithm of ours, the widest for float32:
# no float32 algorithm comes near it, and TF32 is a hundred times beyond.
PEER_LIMIT = "winograd-f4"


@dataclass(frozen=True)
class Bench:
    """What every provider is made with."""

    timer: CudaTimer
    gpu: Gpu
    gpu_name: str
    rows: Sequence[logs.Row] = ()  # tuning results for our own kernels
    stock: Path | None = None  # folder of MetaSchedule's results for TVM's own convolution


@dataclass(frozen=True)
class Prepared:
    """Ready to run: filters transformed or packed, memory allocated."""

    call: Callable[[], Any]  # launches on the timer's stream and does not wait
    output: Callable[[], np.ndarray]  # the result of the last call, when the GPU is done
    algorithm: str  # whose error limit holds, of tolerances.TOLERANCES
    layout: str = "NCHW"
    config: str = ""
    math: str = ""  # of precision.NAMES, where it is known
    workspace_bytes: int | None = None


@dataclass(frozen=True)
class Variant:
    """One way to compute a convolution. Both functions raise UnsupportedError if it cannot."""

    name: str
    prepare: Callable[[Problem, Path | None], Prepared]  # the folder is what `build` wrote
    build: Callable[[], Build] | None = None  # what another process is to compile before


class Provider(Protocol):
    """Made from a `Bench`; touches no device before a variant is prepared."""

    name: str
    ours: bool  # a wrong result of ours ends the benchmark

    def available(self) -> str | None:
        """None, or what is missing on this machine."""

    def variants(self, spec: ConvSpec, epilogue: Epilogue) -> Iterator[Variant]:
        """The ways to compute it, asked for twice: to build all of them ahead, and to measure,
        each before the next is asked for."""
