"""What each optimisation of the fused Winograd kernel is worth: it is switched off, one at a time.

    python benchmarks/ablation.py [--batch 128] [--layers 64x56,512x7] [--only TEXT] [--json FILE]
    python benchmarks/ablation.py --resources [--arch sm_90]      registers only: needs no GPU
    python benchmarks/ablation.py --kernel winograd-f4-fused      its configs: F(4x4)

Everything is compiled first, in parallel; then each variant is run on poisoned memory, compared
with float64 and timed in a CUDA graph, L2 warm, filters transformed outside the time. openCNN's
kernel, as our knobs express it, is among the variants.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ablation_variants import FULL, NONE, VARIANTS, Variant, variants_of_f4
from common import exit_code
from tvm_winograd.bench.conv.problem import Problem

from tvm_winograd import ConvSpec, Epilogue
from tvm_winograd.bench.conv.rows import Row, Store
from tvm_winograd.choose.select import Choice
from tvm_winograd.codegen import build
from tvm_winograd.conv import CompiledConv
from tvm_winograd.gpu import gpu_for
from tvm_winograd.measure import conditions
from tvm_winograd.measure.cuda_timing import CudaTimer, Plan
from tvm_winograd.schedules.base.kernel import Kernel
from tvm_winograd.schedules.winograd_fused.kernel import F4, KERNEL, Fused, FusedTile
from tvm_winograd.te import common, winograd
from tvm_winograd.truth.tolerances import tolerance

LAYERS = "64x56,128x28,256x14,512x7"  # C = K, map: the 3x3 layers of ResNets
PLAN = Plan(warmup_ms=30, repeats=30, total_ms=100)


@dataclass(frozen=True)
class Task:
    """One thing to compile: a variant of a convolution."""

    variant: Variant
    spec: ConvSpec  # in the variant's layout
    config: FusedTile
    arch: str
    library: str

    @property
    def kernel(self) -> Kernel:
        return KERNEL if isinstance(self.config, Fused) else F4

    @property
    def refused(self) -> str | None:
        return self.kernel.illegal(self.config, self.spec, gpu_for(self.arch))


@dataclass(frozen=True)
class Built:
    """What ptxas says of the kernel with the arithmetic; or why there is none."""

    registers: int = 0
    spills: int = 0  # stores and loads
    reason: str = ""


def compile_task(task: Task) -> Built:
    """In a worker process: functions "conv", "pack" and maybe "finish", as a library."""
    epilogue = NONE if task.variant.separate else task.variant.epilogue
    choice = Choice(task.kernel, task.config, "explicit", "ablation")
    done = CompiledConv(task.spec, epilogue, gpu_for(task.arch), choice)
    build.export(done.executable, task.library)
    if task.variant.separate:
        finish = build.build(_finish(task.spec, task.variant.epilogue), gpu_for(task.arch))
        build.export(finish, _finish_library(task))
    kernel = max(done.resources(), key=lambda found: found.registers)
    return Built(kernel.registers, (kernel.spill_stores or 0) + (kernel.spill_loads or 0))


def _finish_library(task: Task) -> str:
    return task.library.replace(".so", "-finish.so")


def _finish(spec: ConvSpec, epilogue: Epilogue) -> Any:
    """The epilogue as a kernel of its own, main(Y, B, R, O): four elements a thread."""
    from tvm import s_tir, te

    y = te.placeholder(spec.output_shape, spec.acc, name="Y")
    _, extra = common.placeholders(spec, epilogue)
    out = common.output(spec, epilogue, extra, lambda n, k, h, w: y[n, k, h, w], "finish")
    sch = s_tir.Schedule(te.create_prim_func([y, *extra, out]))
    loop = sch.fuse(*sch.get_loops(sch.get_sblock("finish")))
    block, turn, thread = sch.split(loop, [None, 4, 256])
    sch.reorder(block, thread, turn)
    sch.bind(block, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    sch.unroll(turn)
    return sch.mod["main"].with_attr("global_symbol", "main")


def compile_all(tasks: list[Task]) -> list[Built]:
    """In as many processes as there are cores; a refused one is not tried."""
    wanted = [task for task in tasks if task.refused is None]
    context = multiprocessing.get_context("spawn")  # TVM's threads do not survive a fork
    with ProcessPoolExecutor(min(os.cpu_count() or 1, len(wanted)), context) as pool:
        done = iter(list(pool.map(compile_task, wanted)))
    return [Built(reason=reason) if (reason := task.refused) else next(done) for task in tasks]


class Bench:
    """Measures one variant after the other on the first GPU."""

    def __init__(self, timer: CudaTimer, spec: ConvSpec) -> None:
        self._timer = timer
        self._problems = {epilogue: Problem(spec, epilogue) for epilogue in (NONE, FULL)}

    def measure(self, task: Task) -> dict[str, float]:
        """Fields of a Row. Raises SystemExit if the result is wrong."""
        layout = task.spec.layout
        problem = self._problems[task.variant.epilogue]
        out = problem.poisoned(layout)
        with self._timer.current():
            call = self._call(task, problem.tensors(layout), out)
            call()
        self._timer.synchronize()
        limit = tolerance(task.spec, task.kernel.algorithm)
        error = problem.error(out.numpy(), layout)
        if not error <= limit:
            raise SystemExit(f"{task.variant.name}, {task.spec.key()}: wrong, error {error:.2e}")
        found = self._timer.measure(call, plan=PLAN)
        return {"error": error, "tflops": task.spec.flops / found.us / 1e6, **asdict(found)}

    def _call(self, task: Task, arrays: list[Any], out: Any) -> Callable[[], None]:
        """What is timed; the filters are transformed here."""
        import tvm

        x, w, *rest = arrays
        library = tvm.runtime.load_module(task.library)
        shape = winograd.weight_shape(task.spec, task.config.tiling)
        packed = tvm.runtime.empty(shape, "float32", out.device)
        library["pack"](w, packed)
        if not task.variant.separate:
            return lambda: library["conv"](x, packed, *rest, out)
        between = tvm.runtime.empty(task.spec.output_shape, "float32", out.device)
        finish = tvm.runtime.load_module(_finish_library(task))

        def both() -> None:
            library["conv"](x, packed, between)
            finish["main"](between, *rest, out)

        return both


def tasks_for(
    specs: list[ConvSpec], only: str, arch: str, folder: str, variants: Sequence[Variant] = VARIANTS
) -> list[Task]:
    found = []
    for spec in specs:
        for variant in variants:
            if only in variant.name or variant.name == "default":
                there = replace(spec, layout=variant.layout)
                config = variant.config_for(there, gpu_for(arch))
                library = str(Path(folder, f"{len(found)}.so"))
                found.append(Task(variant, there, config, arch, library))
    return found


def table(tasks: list[Task], cells: list[str]) -> str:
    """A line a variant, a column a layer."""
    specs = list(dict.fromkeys(replace(t.spec, layout="NCHW") for t in tasks))
    lines = [" ".join([f"{'':50}", *(f"{f'{s.c}, {s.h}x{s.w}':>22}" for s in specs)])]
    rows: dict[str, list[str]] = {}
    for task, cell in zip(tasks, cells, strict=True):
        rows.setdefault(task.variant.name, []).append(f"{cell:>22}")
    return "\n".join(lines + [" ".join([f"{name:50}", *row]) for name, row in rows.items()])


def resources_cell(task: Task, built: Built) -> str:
    if built.reason:
        return "illegal"
    spills = f" {built.spills}s" if built.spills else ""
    return f"{built.registers}r {task.config.shared_bytes}B{spills}"


def measure_all(tasks: list[Task], built: list[Built], json_file: str | None) -> list[str]:
    """The cells of the table; rows go to `json_file` as they come."""
    made = conditions.collect(gpu_for(tasks[0].arch))
    store, cells = Store([Path(json_file)] if json_file else []), []
    base: dict[str, float] = {}
    bench: tuple[Any, Bench] | None = None
    build.ensure_cuda_codegen()  # loads TVM's CUDA runtime
    with CudaTimer() as timer:
        for task, done in zip(tasks, built, strict=True):
            spec = replace(task.spec, layout="NCHW")
            if bench is None or bench[0] != spec:
                bench = spec, Bench(timer, spec)
            row = partial(Row, spec.key(), task.variant.epilogue.key(), "ablation")
            about = {"layout": task.spec.layout, "config": str(task.config), **asdict(made)}
            if done.reason:
                store.add([row(task.variant.name, "refused", note=done.reason, **about)])
                cells.append("illegal")
                continue
            note = f"{done.registers} registers, {done.spills} spills"
            found = bench[1].measure(task)
            how = {"mode": "graph", "l2": "warm", "note": note, **found}
            store.add([row(task.variant.name, "ok", **how, **about)])
            us = found["us"]
            base.setdefault(spec.key(), us)
            cells.append(f"{us:.1f} us {us / base[spec.key()] - 1:+6.1%}")
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--layers", default=LAYERS, help=f"C=K x map, ... (default {LAYERS})")
    parser.add_argument("--only", default="", help="variants whose name has this in it")
    parser.add_argument("--kernel", default=KERNEL.name, choices=(KERNEL.name, F4.name))
    parser.add_argument("--arch", default="sm_90", help="with --resources")
    parser.add_argument("--resources", action="store_true", help="compile only; needs no GPU")
    parser.add_argument("--json", help="file of rows, as `tvm-winograd bench conv` writes them")
    args = parser.parse_args()
    arch = args.arch if args.resources else conditions.find_gpu()[0].arch
    pairs = [map(int, layer.split("x")) for layer in args.layers.split(",")]
    specs = [ConvSpec(args.batch, c, size, size, c) for c, size in pairs]
    with tempfile.TemporaryDirectory() as folder:
        variants = variants_of_f4(specs, arch) if args.kernel == F4.name else VARIANTS
        tasks = tasks_for(specs, args.only, arch, folder, variants)
        built = compile_all(tasks)
        if args.resources:
            cells = [resources_cell(*both) for both in zip(tasks, built, strict=True)]
        else:
            cells = measure_all(tasks, built, args.json)
    print(table(tasks, cells))


if __name__ == "__main__":
    sys.exit(exit_code(main))
