"""Functions that are no convolution as cases of the engine: pooling, averages, dense layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from depthwise_rows import Row

from tvm_winograd.bench.conv.provider import Bench
from tvm_winograd.codegen import build
from tvm_winograd.gpu import gpu_for, make_target
from tvm_winograd.measure.builds import Builders, Built, building, check_jobs
from tvm_winograd.measure.conditions import Conditions
from tvm_winograd.measure.cuda_timing import Plan
from tvm_winograd.measure.engine import Outcome, Prepared, Progress, Sink, TimedHow, measure_all
from tvm_winograd.passes.apply_schedules import dlight_schedule, schedule_function
from tvm_winograd.truth.tolerances import TOLERANCES

LIBRARY, HOW = "function.so", "schedule.txt"
# name -> shapes of the inputs at batch n
FUNCTIONS: dict[str, Callable[[int], list[tuple[int, ...]]]] = {
    "max pool 3x3/2, 64, 112²": lambda n: [(n, 64, 112, 112)],
    "average pool 3x3/1, 192, 28²": lambda n: [(n, 192, 28, 28)],
    "global average, 1280, 7²": lambda n: [(n, 1280, 7, 7)],
    "global average, 2048, 7²": lambda n: [(n, 2048, 7, 7)],
    "dense 512 to 1000": lambda n: [(n, 512), (512, 1000), (1000,)],
    "dense 1280 to 1000": lambda n: [(n, 1280), (1280, 1000), (1000,)],
    "dense 2048 to 1000": lambda n: [(n, 2048), (2048, 1000), (1000,)],
}


@dataclass(frozen=True)
class FunctionBuild:
    """Compiles a function into a library, and notes how it was scheduled."""

    name: str  # of FUNCTIONS
    batch: int
    arch: str
    dlight: bool  # alone, without our rules

    def __call__(self, folder: Path) -> None:
        gpu, func = gpu_for(self.arch), legalised(self.name, self.batch)
        with make_target(gpu):
            if self.dlight:
                how, done = dlight_schedule(func)
            else:
                done, entry = schedule_function(func, None, gpu)
                how = entry["schedule"]
        made = build.build(done.with_attr("global_symbol", "main"), gpu, pipeline="tir")
        build.export(made, folder / LIBRARY)
        (folder / HOW).write_text(how, encoding="utf-8")


class Data:
    """A function's arrays on the GPU, and its float64 result."""

    def __init__(self, name: str, batch: int) -> None:
        import torch

        self.name, self.batch = name, batch
        generator = torch.Generator("cuda").manual_seed(0)
        shapes = FUNCTIONS[name](batch)
        self.inputs = [torch.randn(s, device="cuda", generator=generator) for s in shapes]
        torch.cuda.synchronize()

    @cached_property
    def want(self) -> Any:
        return torch_function(self.name)(*(t.double() for t in self.inputs))

    @property
    def bytes(self) -> int:
        """Inputs and output once, in float32."""
        return 4 * sum(t.numel() for t in (*self.inputs, self.want))


@dataclass(frozen=True)
class FunctionCase:
    """A function by one provider: an engine.Case."""

    data: Data
    provider: str  # "default", "dlight" or "torch"
    builders: Builders
    bench: Bench
    conditions: Conditions
    needed = False

    @property
    def who(self) -> str:
        return self.provider

    @property
    def name(self) -> str:
        return f"{self.data.name}, batch {self.data.batch}: {self.provider}"

    @property
    def ours(self) -> bool:
        return self.provider == "default"

    def built(self) -> Built | None:
        build = build_of(self.data.name, self.data.batch, self.provider, self.bench)
        return self.builders.built(build) if build else None

    def prepare(self, folder: Path | None) -> Prepared:
        import torch
        import tvm
        import tvm_ffi

        if folder is None:
            return self._by_torch()
        out = torch.full(self.data.want.shape, float("nan"), device="cuda")
        arguments = [tvm_ffi.from_dlpack(t) for t in (*self.data.inputs, out)]
        main = tvm.runtime.load_module(str(folder / LIBRARY))["main"]
        how = (folder / HOW).read_text(encoding="utf-8")
        return Prepared(lambda: main(*arguments), lambda: out, config=how)

    def _by_torch(self) -> Prepared:
        import torch

        function, result = torch_function(self.data.name), [None]
        stream = torch.cuda.ExternalStream(self.bench.timer.handle)

        def call() -> None:
            result[0] = function(*self.data.inputs)

        return Prepared(call, lambda: result[0], around=lambda: torch.cuda.stream(stream))

    def error(self, prepared: Prepared) -> float:
        want = self.data.want
        error = float((prepared.output().double() - want).norm() / want.norm())
        return error if error == error else float("inf")

    def limit(self, prepared: Prepared) -> float:
        limit = TOLERANCES["float32", "direct", "fma"]
        return limit if self.provider != "torch" else TOLERANCES["float32", "winograd-f4", "fma"]

    def timings(self) -> list[TimedHow[Prepared]]:
        return [TimedHow(self._figures)]

    def _figures(self, prepared: Prepared) -> dict[str, float]:
        found = self.bench.timer.measure(prepared.call, "graph", "warm", Plan())
        rate = self.data.bytes / found.us / 1e3
        return {"us": found.us, "spread_us": found.spread_us, "gb_per_s": rate}

    def row(self, outcome: Outcome[Prepared]) -> Row:
        return Row(
            name=self.data.name,
            batch=self.data.batch,
            provider=self.provider,
            error=outcome.error,
            detail=outcome.prepared.config if outcome.prepared else "",
            status=outcome.status,
            note=outcome.note,
            **outcome.figures,
            **asdict(self.conditions),
        )

    def line(self, rows: Sequence[Row]) -> str:
        (row,) = rows
        return f"{self.name}: {f'{row.us:.1f} us' if row.us else row.note}"


def build_of(name: str, batch: int, provider: str, bench: Bench) -> FunctionBuild | None:
    """Makes what another process compiles; nothing for torch."""
    if provider == "torch":
        return None
    return FunctionBuild(name, batch, bench.gpu.arch, dlight=provider == "dlight")


def measure(
    names: Sequence[str],
    batch: int,
    dlight: bool,
    bench: Bench,
    conditions: Conditions,
    sink: Sink[Row],
    progress: Progress,
) -> None:
    """Measures functions: as our compiler schedules them, under dlight, by torch."""
    providers = ["default", *["dlight"] * dlight, "torch"]
    wanted = [build_of(name, batch, p, bench) for name in names for p in providers]
    with building(filter(None, wanted), check_jobs(None), progress) as builders:

        def cases() -> Iterator[FunctionCase]:
            for name in names:
                data = Data(name, batch)
                for provider in providers:
                    yield FunctionCase(data, provider, builders, bench, conditions)

        measure_all(cases(), bench.timer, sink, progress)


def legalised(name: str, batch: int) -> Any:
    """Makes the unscheduled PrimFunc of one of FUNCTIONS."""
    import tvm
    from tvm import relax

    builder = relax.BlockBuilder()
    shapes = FUNCTIONS[name](batch)
    inputs = [relax.Var(f"x{i}", relax.TensorType(s, "float32")) for i, s in enumerate(shapes)]
    with builder.function("main", inputs):
        with builder.dataflow():
            if name.startswith("dense"):
                y = builder.emit(relax.op.matmul(*inputs[:2]))
                out = relax.op.add(y, inputs[2])
            elif name.startswith("global"):
                out = relax.op.nn.adaptive_avg_pool2d(inputs[0], (1, 1))
            elif name.startswith("max"):
                out = relax.op.nn.max_pool2d(inputs[0], (3, 3), (2, 2), (1, 1))
            else:
                out = relax.op.nn.avg_pool2d(
                    inputs[0], (3, 3), padding=(1, 1), count_include_pad=True
                )
            out = builder.emit_output(out)
        builder.emit_func_output(out)
    passes = [
        relax.transform.LegalizeOps(),
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FuseOps(),
        relax.transform.FuseTIR(),
    ]
    mod = tvm.transform.Sequential(passes)(builder.get())
    (func,) = (f for _, f in mod.functions_items() if isinstance(f, tvm.tirx.PrimFunc))
    return func


def torch_function(name: str) -> Callable[..., Any]:
    """Makes the same in torch."""
    import torch
    from torch.nn import functional

    if name.startswith("dense"):
        return lambda x, w, b: torch.addmm(b, x, w)
    if name.startswith("global"):
        return lambda x: functional.adaptive_avg_pool2d(x, 1)
    if name.startswith("max"):
        return lambda x: functional.max_pool2d(x, 3, 2, 1)
    return lambda x: functional.avg_pool2d(x, 3, 1, 1)
