"""A whole benchmark of convolutions on this machine's first GPU: what `bench conv` calls."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

from tvm_winograd.codegen import build
from tvm_winograd.errors import InputError, UnsupportedError
from tvm_winograd.gpu import Gpu
from tvm_winograd.measure import conditions
from tvm_winograd.measure.builds import check_jobs
from tvm_winograd.measure.cuda_timing import CudaTimer
from tvm_winograd.shapes import ConvSpec, Epilogue
from tvm_winograd.tables import lookup as logs

from .provider import Bench, Provider, Variant
from .rows import Row, Store
from .run import DEFAULT, PROVIDERS, Settings, measure

Progress = Callable[[str], None]


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
    """Measure and return rows; `files` (.json, .csv) hold each as soon as it is there.

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
    for name in providers:
        if name.partition(":")[0] not in PROVIDERS:
            raise InputError(f"provider {name!r}: there are {', '.join(PROVIDERS)}")
    store, workers = Store(files), check_jobs(jobs)
    gpu, gpu_name = conditions.find_gpu(arch)
    rows = _log_rows(log_folder, gpu, progress)
    build.ensure_cuda_codegen()  # peers need TVM's CUDA runtime too, for their arrays
    with CudaTimer() as timer:
        bench = Bench(timer, gpu, gpu_name, rows, stock)
        chosen = _providers(providers, bench, progress)
        made = conditions.collect(gpu)
        return measure(specs, epilogue, chosen, bench, made, store, settings, progress, workers)


def _log_rows(folder: Path | None, gpu: Gpu, progress: Progress) -> list[logs.Row]:
    if folder is not None and not folder.is_dir():
        raise InputError(f"{folder} is no folder; give a folder of tables")
    places = [place for place in (folder, logs.shipped_folder()) if place is not None]
    rows, complaints = logs.read_places(places, gpu.arch)
    for complaint in complaints:
        progress(complaint)
    return rows


class Picked:
    """A provider with some of its variants."""

    def __init__(self, provider: Provider, names: Collection[str]) -> None:
        self.name, self.ours, self.available = provider.name, provider.ours, provider.available
        self._provider, self._names = provider, names

    def variants(self, spec: ConvSpec, epilogue: Epilogue) -> Iterator[Variant]:
        """Raises:
        InputError: one that was named does not exist.
        """
        seen = []
        for variant in self._provider.variants(spec, epilogue):
            seen.append(variant.name)
            if variant.name in self._names:
                yield variant
        for name in self._names:
            if name not in seen:
                raise InputError(
                    f"{self.name} has no variant {name!r}: there are {', '.join(seen)}"
                )


def _providers(names: Sequence[str], bench: Bench, progress: Progress) -> list[Provider]:
    """Those named, or the default ones that can work here."""
    wanted: dict[str, list[str]] = {}
    for text in names or DEFAULT:
        name, _, variant = text.partition(":")
        wanted.setdefault(name, []).extend([variant] if variant else [])
    found = []
    for name, variants in wanted.items():
        provider = PROVIDERS[name](bench)
        if (missing := provider.available()) is None:
            found.append(Picked(provider, variants) if variants else provider)
        elif names:
            raise UnsupportedError(f"provider {name}: {missing}")
        else:
            progress(f"without {name}: {missing}")
    return found
