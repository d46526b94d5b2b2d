"""Where a session measures: the GPU, its driver, and the versions of everything that is timed.

`Conditions` is the one record of them; rows inherit its fields as columns.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from importlib import metadata

from .. import env
from ..errors import UnsupportedError
from ..gpu import Gpu, gpu_for
from . import provenance
from .cuda_timing import Cudart
from .cudnn_library import Cudnn, load_cudnn

METHOD = (
    "CUDA events, median; graph: replayed, back_to_back: launched from Python; L2 warm: the calls "
    "before left their data, cold: twice the L2 written between calls; filters transformed and "
    "packed outside the time; float32, TF32 off; checked against float64 first"
)


@dataclass(frozen=True, kw_only=True)
class Conditions(provenance.Provenance):
    """Where, with what and how a whole session measured, peers included."""

    cuda: str = ""  # runtime library
    cudnn: str = ""
    torch: str = ""
    method: str = ""


def find_gpu(arch: str = "auto") -> tuple[Gpu, str]:
    """Finds the first GPU here: (description, name).

    Raises:
        UnsupportedError: there is none, or it is of another architecture than `arch`.
    """
    gpus = env.collect()["gpus"]
    if not gpus:
        raise UnsupportedError(
            "there is no NVIDIA GPU here: measure on a machine that has one; pictures of rows "
            "from another machine are drawn by `tvm-winograd report`"
        )
    if arch not in ("auto", gpus[0]["arch"]):
        raise UnsupportedError(
            f"--arch {arch}, but the first GPU here, {gpus[0]['name']}, is {gpus[0]['arch']}"
        )
    return gpu_for(gpus[0]["arch"]), gpus[0]["name"]


def collect(gpu: Gpu) -> Conditions:
    """Describes this machine, whose first GPU is `gpu`."""
    library = load_cudnn()
    return Conditions(
        **asdict(provenance.collect(gpu)),
        cuda=Cudart().version("Runtime"),
        cudnn=Cudnn(library).version() if library else "",
        torch=_version("torch"),
        method=METHOD,
    )


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
