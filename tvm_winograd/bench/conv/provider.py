"""What a provider is: something that computes a convolution in one or several ways."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tvm_winograd.gpu import Hardware
from tvm_winograd.measure import engine
from tvm_winograd.measure.builds import Build
from tvm_winograd.measure.cuda_timing import Timer
from tvm_winograd.measure.problem import Problem
from tvm_winograd.shapes import ConvSpec, Epilogue
from tvm_winograd.tables import lookup as logs

# A peer's result is wrong beyond the limit of this algorithm of ours, the widest for float32:
# no float32 algorithm comes near it, and TF32 is a hundred times beyond.
PEER_LIMIT = "winograd-f4"


@dataclass(frozen=True)
class Bench:
    """What every provider is made with."""

    timer: Timer
    gpu: Hardware
    gpu_name: str
    rows: Sequence[logs.Row] = ()  # tuning results for our own kernels
    stock: Path | None = None  # folder of MetaSchedule's results for TVM's own convolution

    @property
    def device(self) -> str:
        """ "cuda" or "cpu"."""
        return "cuda" if self.gpu.kind == "cuda" else "cpu"


@dataclass(frozen=True)
class Prepared(engine.Prepared):
    """A convolution that is ready to run; its output is an array in `layout`."""

    algorithm: str  # whose error limit holds, of tolerances.TOLERANCES
    layout: str = "NCHW"
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
        """Says what is missing on this machine; None if nothing."""

    def variants(self, spec: ConvSpec, epilogue: Epilogue) -> Iterator[Variant]:
        """Yields the ways to compute it. It is asked twice: to build all of them ahead, and to
        measure, each before the next is asked for."""
