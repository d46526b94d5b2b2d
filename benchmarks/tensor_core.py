"""Times the tensor-core kernels beside cuDNN's float32, each result checked against float64.

    python benchmarks/tensor_core.py --sets 3x3,1x1 --batches 128,32 --out rows.json

Every config of `--sweep` (else the default) is compiled in parallel, run once on poisoned memory,
compared with torch's float64 convolution of four images, and timed as a CUDA graph of 20 calls
(median of 7, L2 warm). `given` rows have max|x| of each image as an argument, as inside a network;
the others find it with a kernel of their own. The peers are torch's conv2d with cudnn.benchmark and
TF32 off, NCHW and NHWC; their faster one counts.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tvm_winograd import ConvSpec, Epilogue
from tvm_winograd.gpu import gpu_for
from tvm_winograd.schedules.tensor_core import kernel, pack, search
from tvm_winograd.schedules.tensor_core.config import TensorCore

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


def spec_of(c: int, size: int, k: int, r: int, stride: int, batch: int) -> ConvSpec:
    """A layer of a ResNet."""
    return ConvSpec(
        n=batch, c=c, h=size, w=size, k=k, r=r, s=r, stride=stride, padding=r // 2, layout="NHWC"
    )


def compiled(job: tuple[ConvSpec, Epilogue, TensorCore, bool, str]) -> str:
    """Builds one kernel into a library; returns what went wrong."""
    import tvm

    from tvm_winograd import build
    from tvm_winograd.passes.plan_workspaces import hoist_workspaces

    spec, epilogue, config, given, path = job
    try:
        func = kernel.prim_func(spec, epilogue, config, kernel.Peaks(given))
        functions = {"conv": hoist_workspaces(func)[0], "pack": kernel.weight_func(spec, config)}
        mod = tvm.IRModule({n: f.with_attr("global_symbol", n) for n, f in functions.items()})
        build.build(mod, GPU, pipeline="tir").export_library(path)
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:500]
    return ""


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


def ours(problem: Problem, config: TensorCore, given: bool, path: str) -> dict[str, Any]:
    """The row of one config."""
    import torch
    import tvm
    import tvm_ffi

    from tvm_winograd.passes.plan_workspaces import hoist_workspaces

    spec, dlpack = problem.spec, tvm_ffi.from_dlpack
    library = tvm.runtime.load_module(path)
    func = kernel.prim_func(spec, EPILOGUE, config, kernel.Peaks(given))
    work = [torch.full([int(v) for v in b.shape], -1, dtype=torch.int32, device="cuda")
            .view(getattr(torch, str(b.dtype))) for b in func_workspaces(func, hoist_workspaces)]
    a = torch.zeros(pack.shape(spec, config), dtype=torch.int32, device="cuda").view(torch.uint32)
    y = torch.full(spec.output_shape, float("nan"), device="cuda")
    library["pack"](dlpack(problem.w), dlpack(a))
    torch.cuda.synchronize()
    peaks = [problem.peaks] if given else []
    args = [dlpack(t) for t in (problem.x, a, problem.bias, *peaks, y, *work)]
    run = library["conv"]

    def call(stream: Any) -> None:
        with tvm_ffi.use_raw_stream(tvm.cuda(0), stream.cuda_stream):
            run(*args)

    us = timed(call)
    torch.cuda.synchronize()
    return {"provider": "ours", "given": given, "us": us, "error": problem.error(y),
            "config": asdict(config)}


def func_workspaces(func: Any, hoist: Any) -> list[Any]:
    """The buffers that hoisting adds to a function's arguments."""
    hoisted, spaces = hoist(func)
    return list(spaces)


def peers(problem: Problem) -> list[dict[str, Any]]:
    """cuDNN through torch, float32, in both layouts."""
    import torch

    torch.backends.cudnn.benchmark = True
    rows = []
    for layout in ("NCHW", "NHWC"):
        memory = torch.channels_last if layout == "NHWC" else torch.contiguous_format
        x = problem.x.permute(0, 3, 1, 2).contiguous(memory_format=memory)
        w = problem.w.contiguous(memory_format=memory)
        spec = problem.spec
        held: list[Any] = [None]

        def call(stream: Any, x: Any = x, w: Any = w, held: list[Any] = held) -> None:
            held[0] = torch.nn.functional.conv2d(
                x, w, None, spec.stride, spec.padding[:2], spec.dilation, spec.groups
            )

        with torch.no_grad():
            us = timed(call)
        y = (held[0] + problem.bias[:, None, None]).relu().permute(0, 2, 3, 1)
        rows.append({"provider": f"cudnn {layout}", "us": us, "error": problem.error(y)})
        del x, w, held, y
    return rows


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", default="3x3")
    parser.add_argument("--batches", default="128")
    parser.add_argument("--sweep", type=int, default=1, help="configs a layer")
    parser.add_argument("--alone", action="store_true", help="also with max|x| by its own kernel")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--commit", default="")
    parser.add_argument("--limit", type=float, default=300, help="seconds for the timings")
    parser.add_argument("--out", default="tensor_core.json")
    options = parser.parse_args()
    layers = [layer for name in options.sets.split(",") for layer in SETS[name]]
    specs = [spec_of(*layer, int(n)) for n in options.batches.split(",") for layer in layers]
    with tempfile.TemporaryDirectory() as folder:
        jobs = [
            (spec, EPILOGUE, config, given, f"{folder}/{i}-{j}-{given}.so")
            for i, spec in enumerate(specs)
            for j, config in enumerate(search.configs(spec, GPU)[: options.sweep])
            for given in ((True, False) if options.alone and j == 0 else (True,))
        ]
        began = time.time()
        with ProcessPoolExecutor(14) as pool:
            failed = dict(zip(jobs, pool.map(compiled, jobs), strict=True))
        print(f"{len(jobs)} kernels compiled in {time.time() - began:.0f} s", flush=True)
        rows = measure(specs, jobs, failed, options)
    document = {**conditions(), "commit": options.commit, "rows": rows}
    Path(options.out).write_text(json.dumps(document, indent=1) + "\n")


def measure(specs: list[ConvSpec], jobs: list[Any], failed: Any, options: Any) -> list[Any]:
    """The rows of all layers; a line each as they come."""
    rows, began = [], time.time()
    for spec in specs:
        if time.time() - began > options.limit:
            print(f"left out from {spec.key()} on: no time", flush=True)
            break
        problem = Problem(spec)
        found = [] if options.no_peers else peers(problem)
        for job in (j for j in jobs if j[0] == spec):
            if failed[job]:
                found.append({"provider": "ours", "config": asdict(job[2]), "failed": failed[job]})
                print(failed[job], flush=True)
                continue
            found.append(ours(problem, job[2], job[3], job[4]))
        best = min((r["us"] for r in found if r["provider"].startswith("cudnn")), default=0)
        for row in found:
            if "us" in row:
                print(line(spec, row, best), flush=True)
        rows += [{"spec": spec.key(), "epilogue": EPILOGUE.key(), **row} for row in found]
        del problem
    return rows


def line(spec: ConvSpec, row: dict[str, Any], best: float) -> str:
    """A row for people."""
    c = row.get("config")
    text = (f"{c['rows']}x{c['filters']} p{c['promote']} s{c['stages']} {c['gather']} "
            f"o{c['ordered']:d} b{c['blocks']} sh{c['shares']}") if c else ""  # fmt: skip
    given = " given" if row.get("given") else ""
    return (f"{spec.key()[:44]:44s} {row['provider']}{given:6s} {row['us']:8.1f} us "
            f"x{best / row['us']:.2f} {row['error']:.1e} {text}")  # fmt: skip


if __name__ == "__main__":
    main()
