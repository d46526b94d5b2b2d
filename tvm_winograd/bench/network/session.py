"""A whole benchmark of networks on this machine's first GPU: what `bench model` calls."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tvm_winograd.choose.options import Wishes
from tvm_winograd.codegen import build
from tvm_winograd.deploy.manifest import MANIFEST
from tvm_winograd.errors import InputError, UnsupportedError
from tvm_winograd.measure import conditions
from tvm_winograd.measure.builds import Build, Built, build_all, check_jobs
from tvm_winograd.measure.cuda_timing import CudaTimer
from tvm_winograd.measure.engine import Progress
from tvm_winograd.measure.row_files import Store
from tvm_winograd.truth import peers

from ..providers import check_names, pick
from . import ours
from .network import Subject
from .provider import Bench, Provider
from .rows import KERNELS, MODELS, KernelRow, Row, kernel_files
from .run import DEFAULT, PROVIDERS, Key, Session, keys, measure

METHOD = (
    "latency: median of single runs, idle GPU to idle GPU, as the host sees them; interval: CUDA "
    "events, median, runs queued back to back; inputs on the GPU; float32, TF32 off; checked "
    "against float64 first"
)


def bench_models(
    models: Sequence[str],
    *,
    batches: Sequence[int] = (1, 32, 128),
    providers: Sequence[str] = (),
    wishes: Wishes | None = None,
    weights: str | None = None,
    arch: str = "auto",
    stock: Path | None = None,
    jobs: int | None = None,
    profiled: bool = False,
    files: Sequence[Path] = (),
    progress: Progress = lambda text: None,
) -> tuple[list[Row], list[KernelRow]]:
    """Measures and returns rows; `files` (.json, .csv) hold each as soon as it is there, and
    kernels lie beside them (`rows.kernel_file`).

    Args:
        models: names and files as `compile` takes them, each with every batch; folders of
            artifacts, which are measured as they are.
        providers: of run.PROVIDERS; those of run.DEFAULT that can work here if none.
        wishes: how the kernels of ours are chosen.
        stock: databases of MetaSchedule's.
        jobs: processes that compile at a time; as many as there are cores if not given.
        profiled: also the time of every kernel of ours.
    Raises:
        UnsupportedError: no GPU here, or a provider that was named cannot work here.
        TvmWinogradError: a model, option or file that cannot be; what `run.measure` raises.
    """
    wishes, stores = wishes or Wishes(), (Store(MODELS, files), Store(KERNELS, kernel_files(files)))
    subjects = subjects_of(models, batches, weights)
    check_names(providers, PROVIDERS)
    workers = check_jobs(jobs)
    gpu, _ = conditions.find_gpu(arch)
    if profiled and not set(ours.NAMES) & set(providers or DEFAULT):
        raise InputError("--profile is of our kernels: add ours to the providers")
    if profiled and not peers.has_torch_cuda():
        raise UnsupportedError("--profile needs torch with CUDA, whose profiler it reads")
    build.ensure_cuda_codegen()  # stock TVM needs its CUDA runtime too
    made = replace(conditions.collect(gpu), method=METHOD)
    with tempfile.TemporaryDirectory(prefix="bench-model-") as scratch, CudaTimer() as timer:
        bench = Bench(timer, gpu, wishes, stock)
        chosen = pick(PROVIDERS, DEFAULT, providers, bench, progress)
        built = compiled(subjects, chosen, Path(scratch), workers, progress)
        text = " ".join(f"{name}={value}" for name, value in wishes.asked().items())
        session = Session(bench, made, *stores, text, profiled=profiled, progress=progress)
        return measure(subjects, chosen, built, session)


def subjects_of(
    models: Sequence[str], batches: Sequence[int], weights: str | None
) -> list[Subject]:
    """Lists every model with every batch.

    Raises:
        InputError: no model, a batch below 1.
    """
    if wrong := [batch for batch in batches if batch < 1]:
        raise InputError(f"batch {wrong[0]}: a positive number of images is needed")
    subjects = []
    for model in models:
        if Path(model, MANIFEST).is_file():
            subjects.append(Subject(model, weights=weights, artifact=True))
        else:
            subjects += [Subject(model, batch, weights) for batch in batches]
    return list(dict.fromkeys(subjects))


def compiled(
    subjects: Sequence[Subject],
    providers: Sequence[Provider],
    scratch: Path,
    jobs: int,
    progress: Progress,
) -> dict[Key, Built]:
    """Compiles everything that has to be, in processes, with a line each."""
    by_name = {provider.name: provider for provider in providers}
    builds: dict[Key, Build] = {}
    for subject, name in keys(subjects, providers):
        if (made := by_name[name].build(subject)) is not None:
            builds[subject, name] = made
    if builds:
        progress(f"compiling {len(builds)} networks, {min(jobs, len(builds))} at a time")

    def finished(key: Key, built: Built) -> None:
        done = f"compiled in {built.seconds:.1f} s"
        if built.trouble:
            done = f"{built.trouble.status}: {built.trouble.note}"
        progress(f"{key[0]}, {key[1]}: {done}")

    return build_all(builds, scratch, jobs, finished)
