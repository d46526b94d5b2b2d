"""Our kernels as a provider: what the compiler would choose, and each algorithm by itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from tvm_winograd.choose.select import Choice, choose
from tvm_winograd.codegen import build
from tvm_winograd.conv import CompiledConv
from tvm_winograd.errors import UnsupportedError
from tvm_winograd.gpu import Hardware, make_target
from tvm_winograd.measure.problem import Problem
from tvm_winograd.passes.apply_schedules import schedule_function
from tvm_winograd.passes.plan_workspaces import hoist_workspaces
from tvm_winograd.schedules import KERNELS
from tvm_winograd.schedules.winograd_fused.named import NAMED
from tvm_winograd.shapes import ConvSpec, Epilogue

from .provider import Bench, Prepared, Variant

_ALGORITHMS = ("winograd-f2", "winograd-f4")
_NAMED_LAYOUT = "CHWN"  # named configs follow a publication, its layout included
_INSIDE = "NHWC"  # where tensor cores are, so that networks are brought to it
LIBRARY = "conv.so"


@dataclass(frozen=True)
class KernelBuild:
    """Compiles a kernel with a config into a library of "conv" and "pack", as in CompiledConv."""

    spec: ConvSpec  # in the layout it runs on
    epilogue: Epilogue
    hardware: Hardware
    kernel: str  # by name: a Kernel cannot be pickled
    config: Any

    def __call__(self, folder: Path) -> None:
        kernel = next(kernel for kernel in KERNELS if kernel.name == self.kernel)
        choice = Choice(kernel, self.config, "explicit", "benchmark")
        compiled = CompiledConv(self.spec, self.epilogue, self.hardware, choice)
        build.export(compiled.executable, folder / LIBRARY)


class Ours:
    """Variants: best (with tuning results), default (without), nhwc (best in that layout, as
    inside networks), each Winograd algorithm's best, and the named configs of the fused kernel.
    Many coincide: those are compiled once."""

    name, ours = "ours", True

    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    def available(self) -> str | None:
        return None

    def variants(self, spec: ConvSpec, epilogue: Epilogue) -> Iterator[Variant]:
        for name, (layout, choice) in self.choices(spec, epilogue).items():
            there, chosen = replace(spec, layout=layout), cache(choice)
            compiled = partial(self._build, there, epilogue, chosen)
            yield Variant(name, partial(self._prepare, chosen, layout), compiled)

    def choices(
        self, spec: ConvSpec, epilogue: Epilogue
    ) -> dict[str, tuple[str, Callable[[], Choice]]]:
        """Maps each variant to (layout it runs in, what chooses its kernel and config)."""
        gpu, name, rows = self._bench.gpu, self._bench.gpu_name, self._bench.rows

        def entry(layout: str, **how: Any) -> tuple[str, Callable[[], Choice]]:
            there = replace(spec, layout=layout)
            return layout, partial(choose, there, epilogue, gpu, gpu_name=name, **how)

        own = {"best": entry(spec.layout, rows=rows), "default": entry(spec.layout)}
        if spec.layout != _INSIDE:
            own["nhwc"] = entry(_INSIDE, rows=rows)
        for algorithm in _ALGORITHMS:
            own[algorithm] = entry(spec.layout, algorithm=algorithm, rows=rows)
        return own | {n: entry(_NAMED_LAYOUT, config=config) for n, config in NAMED.items()}

    def _build(
        self, spec: ConvSpec, epilogue: Epilogue, chosen: Callable[[], Choice]
    ) -> KernelBuild:
        choice = chosen()
        if choice.kernel.schedule is None:
            raise UnsupportedError(f"no kernel of ours: {choice.reason}")
        return KernelBuild(spec, epilogue, self._bench.gpu, choice.kernel.name, choice.config)

    def _prepare(
        self, chosen: Callable[[], Choice], layout: str, problem: Problem, folder: Path | None
    ) -> Prepared:
        assert folder is not None
        choice = chosen()
        knobs = json.dumps(choice.as_dict()["config"])
        config = f"{choice.kernel.name} {knobs}, {choice.source}"
        return loaded(choice, layout, problem, folder, config)


Choices = Mapping[str, "Choice | str"]  # variant -> what to compile, or why it cannot be


class Listed:
    """Kernels and configs that a caller lists for each convolution, as variants."""

    name = "ours"

    def __init__(
        self,
        bench: Bench,
        choices: Callable[[ConvSpec, Epilogue], Choices],
        ours: bool = True,
        workspaces: bool = False,
    ) -> None:
        """
        Args:
            ours: False if the others are to be measured when one is wrong or breaks.
            workspaces: whether rows say how much memory a call takes; each is scheduled for that.
        """
        self.ours, self._bench = ours, bench
        self._choices, self._workspaces = choices, workspaces

    def available(self) -> str | None:
        return None

    def variants(self, spec: ConvSpec, epilogue: Epilogue) -> Iterator[Variant]:
        for name, choice in self._choices(spec, epilogue).items():
            build = partial(self._build, spec, epilogue, choice)
            yield Variant(name, partial(self._prepare, choice), build)

    def _build(self, spec: ConvSpec, epilogue: Epilogue, choice: Choice | str) -> KernelBuild:
        if isinstance(choice, str):
            raise UnsupportedError(choice)
        return KernelBuild(spec, epilogue, self._bench.gpu, choice.kernel.name, choice.config)

    def _prepare(self, choice: Choice | str, problem: Problem, folder: Path | None) -> Prepared:
        assert folder is not None and not isinstance(choice, str)
        size = None
        if self._workspaces:
            size = workspace_bytes(problem.spec, problem.epilogue, choice, self._bench.gpu)
        config = f"{choice.kernel.name} {json.dumps(choice.as_dict()['config'])}"
        layout = problem.spec.layout
        return loaded(choice, layout, problem, folder, config, workspace_bytes=size)


def workspace_bytes(spec: ConvSpec, epilogue: Epilogue, choice: Choice, hardware: Hardware) -> int:
    """Counts the device memory of a call beside its arguments, from the scheduled program."""
    with make_target(hardware):
        func = choice.kernel.prim_func(spec, epilogue, choice.config)
        func, _ = schedule_function(func, choice, hardware)
    return sum(workspace.bytes for workspace in hoist_workspaces(func)[1])


def loaded(
    choice: Choice, layout: str, problem: Problem, folder: Path, config: str, **values: Any
) -> Prepared:
    """Loads what a KernelBuild wrote into `folder`, and packs the weights on the device.

    Args:
        layout: that it was built for.  config, values: of Prepared.
    """
    import tvm

    library = tvm.runtime.load_module(str(folder / LIBRARY))
    x, w, *rest = problem.tensors(layout)
    weights = packed(library, choice, replace(problem.spec, layout=layout), w)
    arguments, function = [x, weights, *rest, out := problem.poisoned(layout)], library["conv"]
    return Prepared(
        call=lambda: function(*arguments),
        output=out.numpy,
        algorithm=choice.algorithm,
        layout=layout,
        config=config,
        math=choice.kernel.math_of(problem.spec),
        **values,
    )


def packed(library: Any, choice: Choice, spec: ConvSpec, w: Any) -> Any:
    """Packs weights on their device with a library's "pack".

    Args:
        spec: in the layout that the library was built for.
    """
    import tvm

    described = choice.kernel.weight_func(spec, choice.config).params[1]
    out = tvm.runtime.empty([int(v) for v in described.shape], described.dtype, w.device)
    library["pack"](w, out)
    return out
