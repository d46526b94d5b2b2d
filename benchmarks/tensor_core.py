"""Times the tensor-core kernels beside cuDNN's float32, each result checked against float64.

    python benchmarks/tensor_core.py build FOLDER --sets 3x3,1x1 --batches 128,32     no GPU needed
    python benchmarks/tensor_core.py run FOLDER --out rows.json                       no compiler

Every config of `--sweep` (else the default) runs on poisoned memory, is compared with torch's
float64 convolution of four images, and timed as a CUDA graph of 20 calls (median of 7, L2 warm).
`given` rows have max|x| of each image as an argument, as inside a network;
the others find it with a kernel of their own. The peers are torch's conv2d with cudnn.benchmark and
TF32 off, NCHW and NHWC; their faster one counts.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tvm_winograd.deploy import loading
from tvm_winograd.gpu import gpu_for
from tvm_winograd.shapes import ConvSpec, Epilogue

GPU = gpu_for("sm_90")
EPILOGUE = Epilogue(bias=True, relu=True)
CALLS, REPEATS, SAMPLES = 20, 7, 4
SETS = {
    "3x3": [(64, 56, 64, 3, 1), (128, 28, 128, 3, 1), (256, 14, 256, 3, 1), (512, 7, 512, 3, 1)],
    "3x3s2": [(128, 56, 128, 3, 2), (256, 28, 256, 3, 2), (512, 14, 512, 3, 2)],
    "1x1": [
        (64, 56, 256, 1, 1), (256, 56, 64, 1, 1), (64, 56, 64, 1, 1), (128, 28, 512, 1, 1),
        (512, 28, 128, 1, 1), (256, 14, 1024, 1, 1), (1024, 14, 256, 1, 1), (512, 7, 2048, 1, 1),
        (2048, 7, 512, 1, 1),
    ],
    "1x1s2": [(256, 56, 512, 1, 2), (512, 28, 1024, 1, 2), (1024, 14, 2048, 1, 2)],
    "stem": [(3, 224, 64, 7, 2)],
}  # fmt: skip


@dataclass(frozen=True)
class Job:
    """A kernel to compile, in words that JSON has."""

    spec: str
    epilogue: str
    config: dict[str, Any]
    given: bool  # max|x| of each image is an argument
    written: bool  # max|y| is one
    file: str


def spec_of(c: int, size: int, k: int, r: int, stride: int, batch: int) -> ConvSpec:
    """A layer of a ResNet."""
    return ConvSpec(
        n=batch, c=c, h=size, w=size, k=k, r=r, s=r, stride=stride, padding=r // 2, layout="NHWC"
    )


def compiled(job: Job) -> dict[str, Any]:
    """Builds one kernel into a library; returns what a run needs to know, or what went wrong."""
    import tvm

    from tvm_winograd.codegen import build
    from tvm_winograd.passes.plan_workspaces import hoist_workspaces
    from tvm_winograd.schedules.tensor_core import kernel, pack
    from tvm_winograd.schedules.tensor_core.config import TensorCore

    spec, config = ConvSpec.from_key(job.spec), TensorCore(**job.config)
    epilogue = Epilogue.from_key(job.epilogue)
    peaks = kernel.Peaks(job.given, job.written)
    try:
        func, workspaces = hoist_workspaces(kernel.prim_func(spec, epilogue, config, peaks))
        functions = {"conv": func, "pack": kernel.weight_func(spec, config)}
        mod = tvm.IRModule({n: f.with_attr("global_symbol", n) for n, f in functions.items()})
        build.build(mod, GPU, pipeline="tir").export_library(job.file)
    except Exception as error:
        return {"failed": f"{type(error).__name__}: {error}"[:500]}
    return {"workspaces": [w.as_dict() for w in workspaces], "packed": pack.shape(spec, config)}


def build_all(jobs: list[Job], folder: Path, workers: int) -> None:
    """Compiles all jobs, without a GPU, into a folder that `run` measures."""
    began = time.time()
    with ProcessPoolExecutor(workers) as pool:
        made = list(pool.map(compiled, jobs))
    document = [{**asdict(job), **one} for job, one in zip(jobs, made, strict=True)]
    for one in document:
        one["file"] = Path(one["file"]).name
    (folder / "jobs.json").write_text(json.dumps(document, indent=1))
    print(f"{len(jobs)} kernels compiled in {time.time() - began:.0f} s")


def load(path: Path) -> Any:
    """A library's functions, through the TVM runtime alone."""
    import tvm_ffi

    loading.load_runtime()
    loading.load_cuda(0)
    return tvm_ffi.load_module(str(path))


class Problem:
    """Tensors of a convolution on the GPU, and four images of its result in float64."""

    def __init__(self, spec: ConvSpec) -> None:
        import torch

        self.spec, torch.backends.cudnn.allow_tf32 = spec, False
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.manual_seed(0)
        self.x = torch.randn(spec.input_shape, device="cuda")
        fan_in = spec.c // spec.groups * spec.r * spec.s
        self.w = torch.randn(spec.weight_shape, device="cuda") * fan_in**-0.5
        self.bias = torch.randn(spec.k, device="cuda")
        self.peaks = self.x.abs().amax((1, 2, 3)).view(torch.int32).view(torch.uint32)
        self.images = sorted({*range(min(2, spec.n)), *range(max(0, spec.n - 2), spec.n)})
        self.want = self.conv(self.x[self.images].double(), self.w.double(), self.bias.double())

    def conv(self, x: Any, w: Any, bias: Any) -> Any:
        """The convolution by torch, NHWC to NHWC."""
        import torch

        spec, top, left = self.spec, self.spec.padding[0], self.spec.padding[1]
        y = torch.nn.functional.conv2d(
            x.permute(0, 3, 1, 2), w, bias, spec.stride, (top, left), spec.dilation, spec.groups
        )
        return y.relu().permute(0, 2, 3, 1)

    def error(self, y: Any) -> float:
        """Relative Frobenius distance from float64; NaN anywhere is NaN."""
        import torch

        if bool(torch.isnan(y).any()):
            return float("nan")
        got = y[self.images].double()
        return float((got - self.want).norm() / self.want.norm())


def timed(call: Any) -> float:
    """Microseconds of a call: the median of graphs of CALLS of them."""
    import torch

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        call(stream)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(CALLS):
                call(stream)
        found = []
        for _ in range(REPEATS + 2):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            found.append(begin.elapsed_time(end) * 1e3 / CALLS)
    return statistics.median(found[2:])


def ours(problem: Problem, job: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The row of one config."""
    import torch
    import tvm_ffi

    spec, dlpack = problem.spec, tvm_ffi.from_dlpack
    library = load(folder / job["file"])

    def poisoned(shape: Any, dtype: str) -> Any:
        full = torch.full(tuple(shape), -1, dtype=torch.int32, device="cuda")
        return full.view(getattr(torch, dtype))

    work = [poisoned(w["shape"], w["dtype"]) for w in job["workspaces"]]
    a, y = poisoned(job["packed"], "uint32"), poisoned(spec.output_shape, "float32")
    library["pack"](dlpack(problem.w), dlpack(a))
    torch.cuda.synchronize()
    peaks = [problem.peaks] if job["given"] else []
    args = [dlpack(t) for t in (problem.x, a, problem.bias, *peaks, y, *work)]
    run, device = library["conv"], args[0].device

    def call(stream: Any) -> None:
        with tvm_ffi.use_raw_stream(device, stream.cuda_stream):
            run(*args)

    us = timed(call)
    torch.cuda.synchronize()
    return {"provider": "ours", "us": us, "error": problem.error(y)}


def peers(problem: Problem) -> list[dict[str, Any]]:
    """cuDNN through torch, float32, in both layouts."""
    import torch

    torch.backends.cudnn.benchmark = True
    rows = []
    for layout in ("NCHW", "NHWC"):
        memory = torch.channels_last if layout == "NHWC" else torch.contiguous_format
        x = problem.x.permute(0, 3, 1, 2).contiguous(memory_format=memory)
        w = problem.w.contiguous(memory_format=memory)
        with torch.no_grad():
            us, y = _torch_time(problem.spec, x, w)
        y = (y + problem.bias[:, None, None]).relu().permute(0, 2, 3, 1)
        rows.append({"provider": f"cudnn {layout}", "us": us, "error": problem.error(y)})
        del x, w, y
    return rows


def _torch_time(spec: ConvSpec, x: Any, w: Any) -> tuple[float, Any]:
    """(microseconds, result) of torch's conv2d without its epilogue."""
    import torch

    held: list[Any] = [None]

    def call(stream: Any) -> None:
        held[0] = torch.nn.functional.conv2d(
            x, w, None, spec.stride, spec.padding[:2], spec.dilation, spec.groups
        )

    return timed(call), held[0]


def conditions() -> dict[str, Any]:
    """What the rows were measured on."""
    import torch

    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    found = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()
    name, _, driver = found.partition(", ")
    return {
        "gpu": name, "driver": driver, "torch": torch.__version__,
        "cudnn": torch.backends.cudnn.version(), "date": time.strftime("%Y-%m-%d"),
        "command": " ".join(["python", *sys.argv]), "tf32": False,
        "method": f"CUDA graph of {CALLS}, median of {REPEATS}, L2 warm",
    }  # fmt: skip


def options_of(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("build", "run"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sets", default="3x3", help=", ".join(SETS))
    parser.add_argument("--batches", default="128")
    parser.add_argument("--sweep", type=int, default=1, help="configs a layer")
    parser.add_argument("--alone", action="store_true", help="also with max|x| by its own kernel")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--commit", default="")
    parser.add_argument("--limit", type=float, default=300, help="seconds for the timings")
    parser.add_argument("--out", default="tensor_core.json")
    return parser.parse_args(argv)


def main() -> None:
    options = options_of(None)
    if options.what == "build":
        options.folder.mkdir(parents=True, exist_ok=True)
        return build_all(jobs_of(options), options.folder, options.workers)
    jobs = json.loads((options.folder / "jobs.json").read_text())
    rows = measure(jobs, options)
    document = {**conditions(), "commit": options.commit, "rows": rows}
    Path(options.out).write_text(json.dumps(document, indent=1) + "\n")
    return None


def jobs_of(options: argparse.Namespace) -> list[Job]:
    """What is to be compiled: the first configs of each layer."""
    from tvm_winograd.schedules.tensor_core import search

    layers = [layer for name in options.sets.split(",") for layer in SETS[name]]
    specs = [spec_of(*layer, int(n)) for n in options.batches.split(",") for layer in layers]
    return [
        Job(spec.key(), EPILOGUE.key(), asdict(config), given, False,
            str(options.folder / f"{i}-{j}-{given:d}.so"))
        for i, spec in enumerate(specs)
        for j, config in enumerate(search.configs(spec, GPU)[: options.sweep])
        for given in ((True, False) if options.alone and j == 0 else (True,))
    ]  # fmt: skip


def measure(jobs: list[dict[str, Any]], options: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of all layers; a line each as they come."""
    rows, began = [], time.time()
    for key in dict.fromkeys(job["spec"] for job in jobs):
        if time.time() - began > options.limit:
            print(f"left out from {key} on: no time", flush=True)
            break
        problem = Problem(ConvSpec.from_key(key))
        found = [] if options.no_peers else peers(problem)
        best = min((row["us"] for row in found), default=0)
        for row in found:
            print(line(key, row, best), flush=True)
        for job in (j for j in jobs if j["spec"] == key):
            known = {k: job[k] for k in ("epilogue", "config", "given")}
            if "failed" in job:
                print(job["failed"], flush=True)
                continue
            found.append({**known, **ours(problem, job, options.folder)})
            print(line(key, found[-1], best), flush=True)
        rows += [{"spec": key, **row} for row in found]
        del problem
    return rows


def line(key: str, row: dict[str, Any], best: float) -> str:
    """A row for people."""
    knobs = ""
    if c := row.get("config"):
        turns = "in turns" if c["ordered"] else "freely"
        knobs = f"{c['rows']}x{c['filters']}, {c['stages']} stages, {turns}, "
        knobs += f"promote {c['promote']}, patch {c['patch']}, {c['shares']} shares"
    name = row["provider"] + (" given" if row.get("given") else "")
    times = f"{row['us']:8.1f} us x{best / row['us']:.2f} {row['error']:.1e}"
    return f"{key[:34]:34s} {name:12s} {times} {knobs}"


if __name__ == "__main__":
    main()
