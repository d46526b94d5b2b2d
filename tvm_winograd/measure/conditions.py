"""Where a session measures: the GPU, its driver, and the versions of everything that is timed."""

from __future__ import annotations

from dataclasses import dataclass
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


@dataclass(frozen=True)
class Conditions:
    """Where, with what and how a whole session measured."""

    gpu: str
    arch: str
    driver: str
    cuda: str  # runtime library
    cudnn: str
    torch: str
    tvm: str
    version: str  # of this package
    commit: str
    date: str  # ISO, UTC
    method: str


def find_gpu(arch: str = "auto") -> tuple[Gpu, str]:
    """(description, name) of the first GPU here.

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
    """Of this machine, whose first GPU is `gpu`."""
    made, library = provenance.collect(gpu), load_cudnn()
    return Conditions(
        gpu=made.gpu,
        arch=made.arch,
        driver=made.driver,
        cuda=Cudart().version("Runtime"),
        cudnn=Cudnn(library).version() if library else "",
        torch=_version("torch"),
        tvm=made.tvm,
        version=made.version,
        commit=made.commit,
        date=made.date,
        method=METHOD,
    )


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
