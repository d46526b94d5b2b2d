"""Whole networks on this GPU: ours as one CUDA graph and kernel by kernel, and torch, in one run.

    python benchmarks/network.py resnet18 resnet50 --batch 1,32,128 [--peers] [--json rows.json]
    python benchmarks/network.py ARTIFACT ... [--peers]

Names of built-in models are compiled here, for this GPU, with and without a graph; the folder of
an artifact of one is loaded as it is. Peers, with the same weights and TF32 off: torch eager with
cudnn.benchmark, kernel by kernel and as one CUDA graph.

Outputs are compared with torch in float64 first. Then two medians each, of an input that is on
the GPU: `latency`, one run from an idle GPU to an idle GPU as the host sees it; and `interval`,
CUDA events around runs that are queued back to back. `--kernels` adds where the time goes: every
kernel of ours, the schedule of its function, and its time in the runs, from CUPTI through torch.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

import tvm_winograd
from tvm_winograd import ConvSpec, env, reference
from tvm_winograd.artifact import Artifact
from tvm_winograd.cli.common import print_table
from tvm_winograd.cuda_timing import CudaTimer
from tvm_winograd.frontend import Model, load_model
from tvm_winograd.frontend.builtin import BUILTINS
from tvm_winograd.frontend.weights import random_images
from tvm_winograd.gpu import gpu_for
from tvm_winograd.runtime import Runner
from tvm_winograd.tolerances import network_ratio
from tvm_winograd.tuning import provenance
from tvm_winograd.verify import load_source

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from torch_networks import torch_network

Run = Callable[[], torch.Tensor]  # queues one run on the timer's stream


@dataclass(frozen=True)
class Kernel:
    """One kernel of a network of ours: its share of a run."""

    model: str
    batch: int
    kernel: str
    schedule: str
    launches: float
    us: float  # of all its launches in one run
    percent: float


@dataclass(frozen=True)
class Row:
    """One network of one provider. Times in milliseconds per batch."""

    model: str
    batch: int
    provider: str
    latency: float
    interval: float
    error: float  # relative Frobenius, against float64
    planned_mib: float | None = None  # activations and workspaces
    captured: str = ""  # functions in a CUDA graph, of all


def subjects(args: argparse.Namespace, arch: str) -> Iterator[tuple[Model, list[Artifact]]]:
    """Each model with a batch, and the artifacts of it to measure."""
    for what in args.what:
        if what not in BUILTINS:
            artifact = Artifact(what)
            if artifact.manifest["batch"]:
                raise SystemExit(f"{what} is for a range of batches: name one of a single batch")
            yield load_source(artifact), [artifact]
            continue
        for batch in map(int, args.batch.split(",")):
            model = load_model(what, batch=batch)
            with tempfile.TemporaryDirectory() as folder:
                yield model, [compiled(model, args, arch, folder, g) for g in (True, False)]


def compiled(
    model: Model, args: argparse.Namespace, arch: str, folder: str, graph: bool
) -> Artifact:
    start = time.perf_counter()
    artifact = tvm_winograd.compile(
        model,
        target="cuda",
        arch=arch,
        output=Path(folder, "graph" if graph else "kernels"),
        algorithm=args.algorithm,
        logs=args.logs,
        cuda_graph=graph,
        ptx=False,
    )
    seconds = time.perf_counter() - start
    print(f"{model.name} batch {model.batch} compiled in {seconds:.0f} s", file=sys.stderr)
    return artifact


def measure(
    model: Model, artifacts: list[Artifact], args: argparse.Namespace, timer: CudaTimer
) -> Iterator[Row | Kernel]:
    """Rows of one model with one batch.

    Raises:
        SystemExit: an output that is wrong.
    """
    x = torch.from_numpy(random_images(np.random.default_rng(1), model.inputs[0].shape)).cuda()
    net = torch_network(BUILTINS[model.name], model.params).cuda()
    with torch.inference_mode():
        want = net.double()(x.double()).cpu().numpy()
        net.float()
        peer_error = reference.relative_error(net(x).cpu().numpy(), want)
    for artifact in artifacts:
        runner = artifact.load()
        layers = [(ConvSpec.from_key(m["spec"]), m["algorithm"]) for m in runner.module["layers"]]
        run = ours(runner, x, timer)
        row = timed(model, "ours", run, want, timer)
        if not row.error <= network_ratio(layers) * peer_error:
            raise SystemExit(f"wrong: {row}, torch's float32 error is {peer_error:.1e}")
        yield described(row, runner.module)
        if args.kernels and artifact is artifacts[0]:
            yield from kernels(model, runner.module, run, timer)
    if args.peers:
        stream = torch.cuda.ExternalStream(timer.handle)
        for name, run in (("torch eager", eager(net, x)), ("torch CUDA graph", graphed(net, x))):
            yield timed(model, name, on_stream(run, stream), want, timer)


def ours(runner: Runner, x: torch.Tensor, timer: CudaTimer) -> Run:
    return lambda: torch.from_dlpack(runner.run(x, stream=timer.handle))


def described(row: Row, module: dict[str, Any]) -> Row:
    """A row of ours, with what the manifest says of the module."""
    graph = module["cuda_graph"]
    calls = f"{graph['captured']}/{graph['captured'] + graph['launched']}" if graph else ""
    name = f"ours, {'CUDA graph' if graph else 'kernels'}"
    memory = module["planned_bytes"] / 2**20
    return Row(**{**asdict(row), "provider": name, "planned_mib": memory, "captured": calls})


def kernels(
    model: Model, module: dict[str, Any], run: Run, timer: CudaTimer, runs: int = 20
) -> list[Kernel]:
    """Where the time of a run goes, the most first."""
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        for _ in range(runs):
            run()
        timer.synchronize()
    found = [e for e in recorded.key_averages() if e.self_device_time_total > 0]
    total = sum(e.self_device_time_total for e in found)
    rows = []
    for event in sorted(found, key=lambda e: -e.self_device_time_total):
        time_us = event.self_device_time_total
        schedule = next(
            (f["schedule"] for f in module["functions"] if event.key.startswith(f["name"] + "_k")),
            "",
        )
        shared = (event.key, schedule, event.count / runs, time_us / runs, 100 * time_us / total)
        rows.append(Kernel(model.name, model.batch, *shared))
    return rows


def eager(net: torch.nn.Module, x: torch.Tensor) -> Run:
    def run() -> torch.Tensor:
        with torch.inference_mode():
            return net(x)

    return run


def graphed(net: torch.nn.Module, x: torch.Tensor) -> Run:
    run, graph, side = eager(net, x), torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):  # cudnn.benchmark chooses outside the capture
            run()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        out = run()

    def replay() -> torch.Tensor:
        graph.replay()
        return out

    return replay


def on_stream(run: Run, stream: torch.cuda.Stream) -> Run:
    def queued() -> torch.Tensor:
        with torch.cuda.stream(stream):
            return run()

    return queued


def timed(model: Model, provider: str, run: Run, want: np.ndarray, timer: CudaTimer) -> Row:
    out = run()
    timer.synchronize()
    error = reference.relative_error(out.cpu().numpy(), want)
    interval = timer.measure(run, "back_to_back").us / 1e3
    return Row(model.name, model.batch, provider, latency(run, timer), interval, error)


def latency(run: Run, timer: CudaTimer, repeats: int = 50) -> float:
    times = []
    for _ in range(repeats):
        timer.synchronize()
        start = time.perf_counter()
        run()
        timer.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="+", help=f"{', '.join(BUILTINS)}, or artifact folders")
    parser.add_argument("--batch", default="1,32,128", help="of models (default 1,32,128)")
    parser.add_argument("--algorithm", default="auto")
    parser.add_argument("--logs", help="tuning tables, before the shipped ones")
    parser.add_argument("--peers", action="store_true", help="torch too")
    parser.add_argument("--kernels", action="store_true", help="the time of each kernel too")
    parser.add_argument("--json", type=Path, metavar="FILE", help="rows, written as they come")
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    gpus = env.collect()["gpus"]
    if not gpus:
        raise SystemExit("there is no NVIDIA GPU here")
    gpu = gpu_for(gpus[0]["arch"])
    where = {**asdict(provenance.collect(gpu)), "torch": torch.__version__}
    where["cudnn"] = torch.backends.cudnn.version()
    rows: list[Row | Kernel] = []
    with CudaTimer() as timer:
        for model, artifacts in subjects(args, gpu.arch):
            for row in measure(model, artifacts, args, timer):
                rows.append(row)
                if args.json:
                    made = {"where": where, "rows": [asdict(r) for r in rows]}
                    args.json.write_text(json.dumps(made, indent=1))
    for kind, title in ((Row, f"{where['gpu']}, ms per batch (medians)"), (Kernel, "kernels")):
        if chosen := [asdict(row) for row in rows if isinstance(row, kind)]:
            print_table(title, list(chosen[0]), [list(map(shown, r.values())) for r in chosen])


def shown(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value or "")


if __name__ == "__main__":
    main()
