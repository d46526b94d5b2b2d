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
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import im2win_tables
from common import broken, choice_of, exit_code, on_this_cpu, progress
from im2win_tables import DEFAULT, WITHOUT

from tvm_winograd import ConvSpec, Epilogue
from tvm_winograd.bench.conv.cudnn import CudnnAlgorithms
from tvm_winograd.bench.conv.ours import Listed
from tvm_winograd.bench.conv.provider import Bench
from tvm_winograd.bench.conv.rows import Row, Store
from tvm_winograd.bench.conv.run import Settings, measure
from tvm_winograd.bench.conv.session import opened
from tvm_winograd.choose.select import Choice, choose, kernels_of
from tvm_winograd.errors import DeviceError
from tvm_winograd.gpu import Hardware, host_cpu
from tvm_winograd.measure import cpu_timing
from tvm_winograd.measure.cpu_timing import CpuTimer
from tvm_winograd.measure.cuda_timing import Plan
from tvm_winograd.schedules.im2win.named import ablation
from tvm_winograd.tables import lookup as logs

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
    """Lists the convolutions of LAYERS at batch `n`."""
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
            found[name] = refusal or choice_of(kernel, config)
    return found


def tuned(algorithm: str, chosen: Any, configs: Sequence[Any], most: int) -> dict[str, Any]:
    """Variant -> config: what is chosen, the default if that is another, further candidates."""
    named = {algorithm: chosen}
    if chosen != configs[0]:
        named[algorithm + DEFAULT] = configs[0]
    further = [config for config in configs[1:] if config != chosen][: most - 1]
    return named | {f"{algorithm} {i}": config for i, config in enumerate(further, 1)}


def listed(
    bench: Bench, args: argparse.Namespace, spec: ConvSpec, epilogue: Epilogue
) -> dict[str, Choice | str]:
    """`candidates` as the arguments ask for them."""
    how = args.configs, args.ablation and bench.gpu.kind == "cuda", bench.rows, bench.gpu_name
    return candidates(spec, bench.gpu, *how)


def measured_on_gpu(specs: list[ConvSpec], args: argparse.Namespace, store: Store) -> list[Row]:
    """Measures all candidates and cuDNN's algorithms, layer by layer."""
    settings = Settings(("graph",), ("warm",), BRIEF if args.configs > 1 else Plan())
    before = set(store.rows)
    try:
        with opened(progress=progress) as (bench, here):
            ours = Listed(bench, partial(listed, bench, args), ours=False, workspaces=True)
            providers = [p for p in (ours, CudnnAlgorithms(bench)) if p.available() is None]
            measure(specs, Epilogue(), providers, bench, here, store, settings, progress)
    except DeviceError as lost:  # of what is in the files already there are tables
        progress(str(lost))
    return [row for row in store.rows if row not in before]


def measured_on_cpu(specs: list[ConvSpec], args: argparse.Namespace, store: Store) -> list[Row]:
    """Measures all candidates, layer by layer."""
    here = on_this_cpu(host_cpu())
    bench = Bench(CpuTimer(), host_cpu(), here.gpu)
    ours = Listed(bench, partial(listed, bench, args), ours=False, workspaces=True)
    settings = Settings((cpu_timing.MODE,), (cpu_timing.L2,))
    return measure(specs, Epilogue(), [ours], bench, here, store, settings, progress)


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
    bad = broken(rows)
    print(*bad, sep="\n", end="\n" if bad else "")
    return 1 if bad or any(spec.key() not in {r.spec for r in rows} for spec in specs) else 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
