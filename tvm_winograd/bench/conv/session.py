"""A whole benchmark of convolutions on this machine's first GPU: what `bench conv` calls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from tvm_winograd.codegen import build
from tvm_winograd.errors import UnsupportedError
from tvm_winograd.gpu import Gpu
from tvm_winograd.measure import conditions
from tvm_winograd.measure.builds import check_jobs
from tvm_winograd.measure.conditions import Conditions
from tvm_winograd.measure.cuda_timing import CudaTimer
from tvm_winograd.measure.engine import Progress
from tvm_winograd.shapes import ConvSpec, Epilogue
from tvm_winograd.tables import lookup as logs

from ..providers import check_names, pick
from .provider import Bench
from .rows import Row, Store
from .run import DEFAULT, PROVIDERS, Settings, measure


def bench_convs(
    specs: Sequence[ConvSpec],
    epilogue: Epilogue,
    *,
    providers: Sequence[str] = (),
    settings: Settings | None = None,
    arch: str = "auto",
    log_folder: Path | None = None,
    stock: Path | None = None,
    jobs: int | None = None,
    files: Sequence[Path] = (),
    progress: Progress = lambda text: None,
) -> list[Row]:
    """Measures and returns rows; `files` (.json, .csv) hold each as soon as it is there.

    Args:
        providers: of run.PROVIDERS, "cudnn" or, for a variant, "cudnn:FFT"; those of run.DEFAULT
            that are on this machine if none.
        log_folder: tuning tables to prefer to the shipped ones.
        stock: records of MetaSchedule's.
        jobs: processes that compile at a time; as many as there are cores if not given.
    Raises:
        UnsupportedError: no GPU here, or a provider that was named cannot work here.
        InputError: an unknown provider, or a file that cannot be read or written.
        WrongResult: a kernel of ours is wrong.
    """
    check_names(providers, PROVIDERS)
    if others := [spec.key() for spec in specs if spec.dtype != "float32"]:
        raise UnsupportedError(f"{others[0]}: this benchmark is of float32 convolutions")
    store, settings = Store(files), replace(settings or Settings(), jobs=check_jobs(jobs))
    with opened(arch, log_folder, stock, progress) as (bench, made):
        chosen = pick(PROVIDERS, DEFAULT, providers, bench, progress)
        return measure(specs, epilogue, chosen, bench, made, store, settings, progress)


@contextmanager
def opened(
    arch: str = "auto",
    log_folder: Path | None = None,
    stock: Path | None = None,
    progress: Progress = lambda text: None,
) -> Iterator[tuple[Bench, Conditions]]:
    """Opens this machine's first GPU: what providers are made with, and what rows say of it.

    Raises:
        UnsupportedError: no GPU here, or another than `arch`.
    """
    gpu, gpu_name = conditions.find_gpu(arch)
    rows = _log_rows(log_folder, gpu, progress)
    build.ensure_cuda_codegen()  # peers need TVM's CUDA runtime too, for their arrays
    with CudaTimer() as timer:
        yield Bench(timer, gpu, gpu_name, rows, stock), conditions.collect(gpu)


def _log_rows(folder: Path | None, gpu: Gpu, progress: Progress) -> list[logs.Row]:
    places = [logs.folder_of(folder)] if folder is not None else []
    places.append(logs.shipped_folder())
    rows, complaints = logs.read_places(places, gpu.arch)
    for complaint in complaints:
        progress(complaint)
    return rows
