"""Our kernels as a provider: what the compiler would choose, and each algorithm by itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from tvm_winograd.schedules.winograd_fused_named import NAMED

from ..conv import CompiledConv
from ..errors import UnsupportedError
from ..select import Choice, choose
from ..shapes import ConvSpec, Epilogue
from .problem import Problem
from .provider import Bench, Prepared, Variant

_ALGORITHMS = ("winograd-f2", "winograd-f4")
_NAMED_LAYOUT = "CHWN"  # named configs follow a publication, its layout included


class Ours:
    """Variants: best (with tuning results), default (without), each Winograd algorithm's best,
    and the named configs of the fused kernel."""

    name, ours = "ours", True

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._compiled: dict[Any, CompiledConv] = {}  # of the current problem: variants coincide

    def available(self) -> str | None:
        return None

    def variants(self, problem: Problem) -> Iterator[Variant]:
        for name, (layout, choice) in self.choices(problem.spec, problem.epilogue).items():
            yield Variant(name, partial(self._prepare, problem, layout, choice))
        self._compiled.clear()

    def choices(
        self, spec: ConvSpec, epilogue: Epilogue
    ) -> dict[str, tuple[str, Callable[[], Choice]]]:
        """Variant -> (layout it runs in, what chooses its kernel and config)."""
        gpu, name, rows = self._bench.gpu, self._bench.gpu_name, self._bench.rows

        def entry(layout: str, **how: Any) -> tuple[str, Callable[[], Choice]]:
            there = replace(spec, layout=layout)
            return layout, partial(choose, there, epilogue, gpu, gpu_name=name, **how)

        own = {"best": entry(spec.layout, rows=rows), "default": entry(spec.layout)}
        for algorithm in _ALGORITHMS:
            own[algorithm] = entry(spec.layout, algorithm=algorithm, rows=rows)
        return own | {n: entry(_NAMED_LAYOUT, config=config) for n, config in NAMED.items()}

    def _prepare(self, problem: Problem, layout: str, choice_of: Callable[[], Choice]) -> Prepared:
        choice = choice_of()
        if choice.kernel.schedule is None:
            raise UnsupportedError(f"no kernel of ours: {choice.reason}")
        compiled = self._compile(problem, choice, layout)
        x, w, *rest = problem.tensors(layout)
        arguments = [x, compiled.pack(w), *rest, out := problem.poisoned(layout)]
        function = compiled.executable["conv"]
        knobs = json.dumps(choice.as_dict()["config"])
        return Prepared(
            call=lambda: function(*arguments),
            output=out.numpy,
            algorithm=choice.algorithm,
            layout=layout,
            config=f"{choice.kernel.name} {knobs}, {choice.source}",
        )

    def _compile(self, problem: Problem, choice: Choice, layout: str) -> CompiledConv:
        key = (choice.kernel.name, choice.config, layout)
        if key not in self._compiled:
            spec = replace(problem.spec, layout=layout)
            self._compiled[key] = CompiledConv(spec, problem.epilogue, self._bench.gpu, choice)
        return self._compiled[key]
