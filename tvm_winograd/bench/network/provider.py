"""What a provider is: something that runs a whole network in one way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tvm_winograd.choose.options import Wishes
from tvm_winograd.gpu import Hardware
from tvm_winograd.measure import engine
from tvm_winograd.measure.builds import Build
from tvm_winograd.measure.cuda_timing import CudaTimer
from tvm_winograd.truth.tolerances import NETWORK_RATIO, TOLERANCES

from ..conv.provider import PEER_LIMIT
from .network import Network, Subject

# How often a peer's error may hold that of a plain float32 evaluation: as an algorithm with the
# limit that peers have for one convolution.
PEER_RATIO = (
    NETWORK_RATIO
    * TOLERANCES["float32", PEER_LIMIT, "fma"]
    / TOLERANCES["float32", "direct", "fma"]
)


@dataclass(frozen=True)
class Bench:
    """What every provider is made with."""

    timer: CudaTimer
    hardware: Hardware
    wishes: Wishes = field(default_factory=Wishes)  # how our kernels are chosen
    stock: Path | None = None  # folder of MetaSchedule's results for TVM's own convolutions

    @property
    def device(self) -> str:
        """ "cuda" or "cpu"."""
        return "cuda" if self.hardware.kind == "cuda" else "cpu"


@dataclass(frozen=True)
class Prepared(engine.Prepared):
    """A network that is ready to run; its output is a list of arrays."""

    ratio: float = PEER_RATIO  # limit of its error over that of a plain float32 evaluation
    memory_bytes: int | None = None  # activations and workspaces
    compile_s: float | None = None  # if it was compiled just now
    module: Mapping[str, Any] | None = None  # of ours: its entry of the manifest


class Provider(Protocol):
    """Made from a `Bench`; touches no device before `prepare`."""

    name: str
    ours: bool  # a wrong result of ours ends the benchmark

    def available(self) -> str | None:
        """Says what is missing on this machine; None if nothing."""

    def build(self, subject: Subject) -> Build | None:
        """Makes what another process is to do before anything is measured."""

    def prepare(self, network: Network, folder: Path | None) -> Prepared:
        """Makes it ready to run.

        Args:
            folder: what `build` wrote.
        Raises:
            UnsupportedError: it cannot run this network.
        """
