"""Windows in memory order (im2win) on the twelve layers of its papers, with the memory it takes.

    python benchmarks/im2win.py [--batch 32] [--target cuda] [--configs [N]] [--ablation]
                                [--only r7s7] [--json rows.json]

Ours in float32: im2win and im2col with the config that the shipped tables choose, the default where
that is another, and with --configs further ones, N of each in all; implicit GEMM and direct
convolution (TVM's dlight); beside them every algorithm of cuDNN that is on this machine. All are
compared with float64 on zero-mean data first. Times: cuda, medians in a CUDA graph, L2 warm; llvm,
medians of calls on all cores. The transform of the input is inside, the packing of weights outside.
Memory: what the program allocates beside input, weights and output, tiles of a CPU thread not
counted. --ablation leaves out one optimisation of the CUDA kernel after the other. CUDA candidates
are compiled by all cores while others are measured. What cannot be computed, breaks or is wrong is
a row with the reason; after all tables the exit code is 1 if it was ours. --json keeps rows as they
come.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import im2win_tables
import numpy as np
from common import exit_code
from im2win_tables import DEFAULT, WITHOUT
from tvm_winograd.bench.conv.problem import Problem

from tvm_winograd import ConvSpec, Epilogue
from tvm_winograd.bench.conv.cudnn import CudnnAlgorithms
from tvm_winograd.bench.conv.ours import KernelBuild, loaded
from tvm_winograd.bench.conv.provider import Bench, Prepared, Variant
from tvm_winograd.bench.conv.rows import Row, Store
from tvm_winograd.bench.conv.run import Settings, measure
from tvm_winograd.choose.select import Choice, choose, kernels_of
from tvm_winograd.codegen import build
from tvm_winograd.conv import CompiledConv
from tvm_winograd.errors import DeviceError, UnsupportedError
from tvm_winograd.gpu import Hardware, host_cpu, make_target
from tvm_winograd.measure import conditions, provenance
from tvm_winograd.measure.attempt import Trouble, WrongResult, attempt
from tvm_winograd.measure.cuda_timing import CudaTimer, Plan
from tvm_winograd.passes.apply_schedules import schedule_function
from tvm_winograd.passes.plan_workspaces import hoist_workspaces
from tvm_winograd.schedules.base.kernel import Kernel, config_dict
from tvm_winograd.schedules.im2win.search import ablation
from tvm_winograd.tables import lookup as logs
from tvm_winograd.truth import reference
from tvm_winograd.truth.tolerances import tolerance

# (channels, map, filters, filter size, stride), no padding
LAYERS = (
    (3, 227, 96, 11, 4), (3, 231, 96, 11, 4), (3, 227, 64, 7, 2), (32, 224, 64, 7, 2),
    (96, 24, 256, 5, 1), (256, 12, 512, 3, 1), (3, 224, 64, 3, 1), (64, 112, 128, 3, 1),
    (64, 56, 64, 3, 1), (128, 28, 128, 3, 1), (256, 14, 256, 3, 1), (512, 7, 512, 3, 1),
)  # fmt: skip
PEERS = {"cuda": ("im2col", "gemm", "direct"), "llvm": ("direct",)}  # our other algorithms
TUNED = ("im2win", "im2col")  # of which several configs are measured
BRIEF = Plan(warmup_ms=15.0, total_ms=60.0)


def layers(n: int) -> list[ConvSpec]:
    """The convolutions of LAYERS at batch `n`."""
    return [ConvSpec(n, c, hw, hw, k, r, r, stride, (0,) * 4) for c, hw, k, r, stride in LAYERS]


def candidates(
    spec: ConvSpec,
    hardware: Hardware,
    most: int,
    ablated: bool,
    rows: Sequence[logs.Row] = (),
    gpu_name: str | None = None,
) -> dict[str, Choice | str]:
    """Variant -> what to compile, or why it cannot be.

    Args:
        most: configs of each of TUNED, its default apart.  rows: of the tuning tables.
    """
    found: dict[str, Choice | str] = {}
    for algorithm in ("im2win", *PEERS[hardware.kind]):
        kernels = kernels_of(algorithm, hardware)
        reasons = [kernel.supports(spec, Epilogue(), hardware) for kernel in kernels]
        if None not in reasons:
            found[algorithm] = "; ".join(map(str, reasons))
            continue
        kernel = kernels[reasons.index(None)]
        named = {algorithm: kernel.configs(spec, hardware)[0]}
        if algorithm in TUNED:
            how: dict[str, Any] = {"algorithm": algorithm, "rows": rows, "gpu_name": gpu_name}
            choice = choose(spec, Epilogue(), hardware, **how)
            kernel = choice.kernel
            named = tuned(algorithm, choice.config, kernel.configs(spec, hardware), most)
        if algorithm == "im2win" and ablated:
            without = ablation(named[algorithm])[1:]
            named |= {WITHOUT + name: config for name, config in without}
        for name, config in named.items():
            refusal = kernel.illegal(config, spec, hardware)
            found[name] = refusal or Choice(kernel, config, "explicit", "benchmark")
    return found


def tuned(algorithm: str, chosen: Any, configs: Sequence[Any], most: int) -> dict[str, Any]:
    """Variant -> config: what is chosen, the default if that is another, further candidates."""
    named = {algorithm: chosen}
    if chosen != configs[0]:
        named[algorithm + DEFAULT] = configs[0]
    further = [config for config in configs[1:] if config != chosen][: most - 1]
    return named | {f"{algorithm} {i}": config for i, config in enumerate(further, 1)}


def scheduled(spec: ConvSpec, kernel: Kernel, config: Any, hardware: Hardware) -> Any:
    """The PrimFunc as it is built."""
    with make_target(hardware):
        func = kernel.prim_func(spec, Epilogue(), config)
        choice = Choice(kernel, config, "explicit", "benchmark")
        return schedule_function(func, choice, hardware)[0]


def workspace_bytes(spec: ConvSpec, choice: Choice, hardware: Hardware) -> int:
    """Device memory of a call beside its arguments, from the scheduled program."""
    func = scheduled(spec, choice.kernel, choice.config, hardware)
    return sum(w.bytes for w in hoist_workspaces(func)[1])


class Candidates:
    """Our candidates as a provider; one that breaks or is wrong leaves the others to measure."""

    name, ours = "ours", False

    def __init__(self, bench: Bench, most: int, ablated: bool) -> None:
        self._bench, self._most, self._ablated = bench, most, ablated

    def available(self) -> str | None:
        return None

    def variants(self, spec: ConvSpec, epilogue: Epilogue) -> Iterator[Variant]:
        bench = self._bench
        how = self._most, self._ablated, bench.rows, bench.gpu_name
        found = candidates(spec, bench.gpu, *how)
        for name, choice in found.items():
            yield Variant(name, partial(self._prepare, choice), partial(self._build, spec, choice))

    def _build(self, spec: ConvSpec, choice: Choice | str) -> KernelBuild:
        if isinstance(choice, str):
            raise UnsupportedError(choice)
        name = choice.kernel.name
        return KernelBuild(spec, Epilogue(), self._bench.gpu, name, choice.config)

    def _prepare(self, choice: Choice, problem: Problem, folder: Path) -> Prepared:
        config = f"{choice.kernel.name} {config_dict(choice.config)}"
        size = workspace_bytes(problem.spec, choice, self._bench.gpu)
        return loaded(choice, "NCHW", problem, folder, config, workspace_bytes=size)


def measured_on_gpu(specs: list[ConvSpec], args: argparse.Namespace, store: Store) -> list[Row]:
    """All candidates and cuDNN's algorithms, layer by layer."""
    build.ensure_cuda_codegen()
    gpu, gpu_name = conditions.find_gpu()
    settings = Settings(("graph",), ("warm",), BRIEF if args.configs > 1 else Plan())
    with CudaTimer() as timer:
        rows, complaints = logs.read_folder(logs.shipped_folder(), gpu.arch)
        for complaint in complaints:
            progress(complaint)
        bench = Bench(timer, gpu, gpu_name, rows)
        providers = [Candidates(bench, args.configs, args.ablation), CudnnAlgorithms(bench)]
        present = [p for p in providers if p.available() is None]
        here, before = conditions.collect(gpu), set(store.rows)
        try:
            measure(specs, Epilogue(), present, bench, here, store, settings, progress)
        except DeviceError as lost:  # of what is in the files already there are tables
            progress(str(lost))
        return [row for row in store.rows if row not in before]


def measured_on_cpu(specs: list[ConvSpec], args: argparse.Namespace, store: Store) -> list[Row]:
    """All candidates, layer by layer."""
    cpu, rows = host_cpu(), []
    made = provenance.collect(cpu)
    where = {name: getattr(made, name) for name in ("gpu", "arch", "tvm", "version", "commit")}
    for spec in specs:
        rng = np.random.default_rng(0)
        x = rng.standard_normal(spec.input_shape, "float32")
        w = rng.standard_normal(spec.weight_shape, "float32") / (spec.c * spec.r * spec.s) ** 0.5
        want = reference.conv2d(spec, x, w)
        for name, choice in candidates(spec, cpu, args.configs, False).items():
            got = attempt(partial(timed, spec, cpu, choice, x, w.astype("float32"), want))
            if isinstance(got, Trouble):
                got = {"status": got.status, "note": got.note}
            row = Row(spec.key(), "none", "ours", name, date=made.date, **where, **got)
            store.add([row])
            rows.append(row)
            progress(f"{spec.key()} {name}: {row.note or f'{row.us:.0f} us'}")
    return rows


def timed(
    spec: ConvSpec,
    cpu: Hardware,
    choice: Choice | str,
    x: np.ndarray,
    w: np.ndarray,
    want: np.ndarray,
) -> dict[str, Any]:
    """The figures of a row: time, error, memory.

    Raises:
        UnsupportedError: there is a reason instead of a choice.
        WrongResult: it errs more than it may.
    """
    import tvm

    if isinstance(choice, str):
        raise UnsupportedError(choice)
    compiled = CompiledConv(spec, Epilogue(), cpu, choice)
    out = tvm.runtime.tensor(np.full(spec.output_shape, np.nan, "float32"))
    arguments = (tvm.runtime.tensor(x), compiled.pack(w), out)
    function = compiled.executable["conv"]
    function(*arguments)
    error = reference.relative_error(out.numpy(), want)
    if not error <= (limit := tolerance(spec, choice.algorithm)):
        raise WrongResult(f"relative error {error:.2e}, limit {limit:.0e}")
    us, spread = median_us(lambda: function(*arguments))
    return {
        "status": "ok",
        "mode": "calls",
        "l2": "warm",
        "us": us,
        "spread_us": spread,
        "tflops": spec.flops / us / 1e6,
        "error": error,
        "config": str(config_dict(choice.config)),
        "workspace_bytes": workspace_bytes(spec, choice, cpu),
    }


def median_us(call: Callable[[], object], least: int = 10, seconds: float = 0.3) -> tuple:
    """(median, width of the middle half) of at least `least` calls, in microseconds."""
    times: list[float] = []
    while len(times) < least or sum(times) < seconds * 1e6:
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1e6)
    low, middle, high = statistics.quantiles(times, n=4)
    return middle, high - low


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--target", choices=("cuda", "llvm"), default="cuda")
    parser.add_argument("--configs", type=int, nargs="?", const=100, default=1, metavar="N")
    parser.add_argument("--ablation", action="store_true", help="CUDA only")
    parser.add_argument("--only", default="", help="layers whose key contains this, e.g. r7s7")
    parser.add_argument("--json", type=Path, metavar="FILE", help="rows, written as they come")
    args = parser.parse_args()
    specs = [spec for spec in layers(args.batch) if args.only in spec.key()]
    store = Store([args.json] if args.json else [])
    run = measured_on_gpu if args.target == "cuda" else measured_on_cpu
    rows = run(specs, args, store)
    im2win_tables.print_times(specs, rows, PEERS[args.target])
    im2win_tables.print_memory(specs, rows)
    if args.ablation:
        im2win_tables.print_ablation(specs, rows)
    im2win_tables.print_summary(specs, rows)
    broken = [r for r in rows if r.provider == "ours" and r.status in ("failed", "wrong")]
    for row in broken:
        print(f"{row.spec} {row.name}: {row.status}: {row.note}")
    return 1 if broken or any(spec.key() not in {r.spec for r in rows} for spec in specs) else 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
