"""What each optimisation of the fused Winograd kernel is worth: it is switched off, one at a time.

    python benchmarks/ablation.py [--batch 128] [--layers 64x56,512x7] [--only TEXT] [--json FILE]
    python benchmarks/ablation.py --resources [--arch sm_90]      registers only: needs no GPU
    python benchmarks/ablation.py --kernel winograd-f4-fused      its configs: F(4x4)

Each variant is run on poisoned memory, compared with float64 and timed in a CUDA graph, L2 warm,
filters transformed outside the time. openCNN's kernel, as our knobs express it, is among the
variants.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ablation_variants import NONE, VARIANTS, variants_of_f4
from ablation_variants import Variant as Knobs
from common import choice_of, exit_code, progress

from tvm_winograd import ConvSpec, Epilogue
from tvm_winograd.bench.conv.ours import LIBRARY, loaded, packed
from tvm_winograd.bench.conv.provider import Prepared, Variant
from tvm_winograd.bench.conv.rows import Row, Store
from tvm_winograd.bench.conv.run import Settings, measure
from tvm_winograd.bench.conv.session import opened
from tvm_winograd.choose.select import Choice
from tvm_winograd.codegen import build
from tvm_winograd.conv import CompiledConv
from tvm_winograd.errors import BuildError, UnsupportedError
from tvm_winograd.gpu import gpu_for
from tvm_winograd.measure.builds import build_all, check_jobs
from tvm_winograd.measure.conditions import find_gpu
from tvm_winograd.measure.cuda_timing import Plan
from tvm_winograd.measure.problem import Problem
from tvm_winograd.schedules.base.kernel import Kernel
from tvm_winograd.schedules.winograd_fused.kernel import F4, KERNEL, Fused, FusedTile
from tvm_winograd.te import common

LAYERS = "64x56,128x28,256x14,512x7"  # C = K, map: the 3x3 layers of ResNets
SETTINGS = Settings(("graph",), ("warm",), Plan(warmup_ms=30, repeats=30, total_ms=100))
_RESOURCES, _FINISH = "resources.json", "finish.so"


@dataclass(frozen=True)
class Resources:
    """What ptxas says of the kernel with the arithmetic."""

    registers: int
    spills: int  # stores and loads

    @classmethod
    def read(cls, folder: Path) -> Resources:
        return cls(**json.loads((folder / _RESOURCES).read_text(encoding="utf-8")))


@dataclass(frozen=True)
class AblationBuild:
    """Compiles a variant: functions "conv" and "pack" into a library, maybe "finish" into another,
    and what ptxas says."""

    spec: ConvSpec  # in the variant's layout
    epilogue: Epilogue
    separate: bool  # the epilogue in a kernel of its own
    config: FusedTile
    arch: str

    def __call__(self, folder: Path) -> None:
        gpu, inside = gpu_for(self.arch), NONE if self.separate else self.epilogue
        done = CompiledConv(self.spec, inside, gpu, choice_of(kernel_of(self.config), self.config))
        build.export(done.executable, folder / LIBRARY)
        if self.separate:
            finish = build.build(_finish(self.spec, self.epilogue), gpu)
            build.export(finish, folder / _FINISH)
        kernel = max(done.resources(), key=lambda found: found.registers)
        spills = (kernel.spill_stores or 0) + (kernel.spill_loads or 0)
        found = {"registers": kernel.registers, "spills": spills}
        (folder / _RESOURCES).write_text(json.dumps(found), encoding="utf-8")


def kernel_of(config: FusedTile) -> Kernel:
    """Finds the fused kernel that a config is of."""
    return KERNEL if isinstance(config, Fused) else F4


@dataclass(frozen=True)
class Task:
    """A variant of one convolution."""

    variant: Knobs
    spec: ConvSpec  # in the variant's layout
    config: FusedTile
    arch: str

    @property
    def refused(self) -> str | None:
        return kernel_of(self.config).illegal(self.config, self.spec, gpu_for(self.arch))

    def build(self) -> AblationBuild:
        """Raises:
        UnsupportedError: the config is illegal.
        """
        if self.refused:
            raise UnsupportedError(self.refused)
        variant = self.variant
        return AblationBuild(self.spec, variant.epilogue, variant.separate, self.config, self.arch)


def _finish(spec: ConvSpec, epilogue: Epilogue) -> Any:
    """Makes a kernel of the epilogue alone, main(Y, B, R, O): four elements a thread."""
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


class Ablation:
    """The variants as a provider; it computes those with the epilogue that is asked for."""

    name, ours = "ablation", True

    def __init__(self, variants: Sequence[Knobs], only: str, arch: str) -> None:
        self._variants, self._only, self._arch = variants, only, arch

    def available(self) -> str | None:
        return None

    def variants(self, spec: ConvSpec, epilogue: Epilogue) -> Iterator[Variant]:
        for task in tasks_for([spec], self._only, self._arch, self._variants):
            if task.variant.epilogue == epilogue:
                yield Variant(task.variant.name, partial(prepare, task), task.build)


def prepare(task: Task, problem: Problem, folder: Path) -> Prepared:
    """Loads what was built; a separate epilogue is a second launch."""
    choice, layout = choice_of(kernel_of(task.config), task.config), task.spec.layout
    found = Resources.read(folder)
    note = f"{found.registers} registers, {found.spills} spills"
    text = str(task.config)
    if not task.variant.separate:
        return loaded(choice, layout, problem, folder, text, note=note)
    return with_second_kernel(choice, layout, problem, folder, config=text, note=note)


def with_second_kernel(
    choice: Choice, layout: str, problem: Problem, folder: Path, **values: str
) -> Prepared:
    """Prepares the bare convolution into memory of its own, then "finish"."""
    import tvm

    spec = replace(problem.spec, layout=layout)
    library = tvm.runtime.load_module(str(folder / LIBRARY))
    finish = tvm.runtime.load_module(str(folder / _FINISH))
    x, w, *rest = problem.tensors(layout)
    weights, out = packed(library, choice, spec, w), problem.poisoned(layout)
    between = tvm.runtime.empty(spec.output_shape, "float32", out.device)

    def both() -> None:
        library["conv"](x, weights, between)
        finish["main"](between, *rest, out)

    return Prepared(both, out.numpy, choice.algorithm, layout, **values)


def tasks_for(
    specs: Sequence[ConvSpec], only: str, arch: str, variants: Sequence[Knobs] = VARIANTS
) -> list[Task]:
    """Lists every variant of every convolution whose name has `only` in it, and the default."""
    found = []
    for spec in specs:
        for variant in variants:
            if only in variant.name or variant.name == "default":
                there = replace(spec, layout=variant.layout)
                config = variant.config_for(there, gpu_for(arch))
                found.append(Task(variant, there, config, arch))
    return found


def table(tasks: list[Task], cells: list[str]) -> str:
    """Draws a line a variant, a column a layer."""
    specs = list(dict.fromkeys(replace(t.spec, layout="NCHW") for t in tasks))
    lines = [" ".join([f"{'':50}", *(f"{f'{s.c}, {s.h}x{s.w}':>22}" for s in specs)])]
    rows: dict[str, list[str]] = {}
    for task, cell in zip(tasks, cells, strict=True):
        rows.setdefault(task.variant.name, []).append(f"{cell:>22}")
    return "\n".join(lines + [" ".join([f"{name:50}", *row]) for name, row in rows.items()])


def resources_cell(task: Task, found: Resources | None) -> str:
    """Writes registers, shared memory and spills; None: the config is illegal."""
    if found is None:
        return "illegal"
    spills = f" {found.spills}s" if found.spills else ""
    return f"{found.registers}r {task.config.shared_bytes}B{spills}"


def resources_cells(tasks: Sequence[Task]) -> list[str]:
    """Compiles all that are legal, without a GPU."""
    builds = {i: task.build() for i, task in enumerate(tasks) if task.refused is None}
    with tempfile.TemporaryDirectory() as scratch:
        made = build_all(builds, Path(scratch), check_jobs(None))
        if broken := [done.trouble for done in made.values() if done.trouble]:
            raise BuildError(broken[0].note)
        found = {i: Resources.read(done.folder) for i, done in made.items()}
    return [resources_cell(task, found.get(i)) for i, task in enumerate(tasks)]


def measured_cells(
    tasks: Sequence[Task], specs: list[ConvSpec], provider: Ablation, store: Store
) -> list[str]:
    """Measures: times beside those of the default."""
    with opened() as (bench, here):
        rows: list[Row] = []
        for epilogue in dict.fromkeys(task.variant.epilogue for task in tasks):
            rows += measure(specs, epilogue, [provider], bench, here, store, SETTINGS, progress)
    us = {(row.spec, row.variant): row.us for row in rows}
    return [time_cell(us, task) for task in tasks]


def time_cell(us: dict[tuple[str, str], float | None], task: Task) -> str:
    """Writes us, and how much that is above the default's."""
    key = replace(task.spec, layout="NCHW").key()
    mine, default = us[key, task.variant.name], us[key, "default"]
    if mine is None:
        return "illegal"
    return f"{mine:.1f} us {mine / default - 1:+6.1%}" if default else f"{mine:.1f} us"


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
    arch = args.arch if args.resources else find_gpu()[0].arch
    pairs = [map(int, layer.split("x")) for layer in args.layers.split(",")]
    specs = [ConvSpec(args.batch, c, size, size, c) for c, size in pairs]
    variants = variants_of_f4(specs, arch) if args.kernel == F4.name else VARIANTS
    tasks = tasks_for(specs, args.only, arch, variants)
    if args.resources:
        cells = resources_cells(tasks)
    else:
        store = Store([Path(args.json)] if args.json else [])
        cells = measured_cells(tasks, specs, Ablation(variants, args.only, arch), store)
    print(table(tasks, cells))


if __name__ == "__main__":
    sys.exit(exit_code(main))
