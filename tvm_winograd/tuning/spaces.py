"""The search space of one convolution: a schedule per legal config of every kernel that applies.

A MetaSchedule space is a `ScheduleFn` that returns a list of schedules, each with a trace of
concrete numbers, no mutators: knobs inside one trace do not survive mutation or saving. A config
may change the program itself (its tile-shaped layouts), so each distinct program is a workload
with a space of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import s_tir
from tvm.s_tir import meta_schedule as ms

from tvm_winograd.schedules.base.kernel import Kernel

from ..choose.select import NO_LIMITS, Limits
from ..choose.select import candidates as kernels_for
from ..gpu import Hardware, make_target
from ..ir.tvm_027 import structural_hash
from ..shapes import ConvSpec, Epilogue

# Estimates this much above the best are left out; measured times are 0.9 to 1.6 of an estimate.
_HOPELESS = 3.0


@dataclass(frozen=True, eq=False)
class Candidate:
    """One config, scheduled."""

    kernel: Kernel
    config: Any
    schedule: s_tir.Schedule
    default: bool  # of its kernel
    program: str  # structural hash of the scheduled module


@dataclass(frozen=True)
class Space:
    """All candidates of a convolution, the most promising first, and what was left out."""

    candidates: list[Candidate]
    illegal: dict[str, int] = field(default_factory=dict)  # reason -> configs
    hopeless: int = 0  # configs left out by the estimate


def space_of(
    spec: ConvSpec,
    epilogue: Epilogue,
    hardware: Hardware,
    kernels: Sequence[Kernel] | None = None,
    limits: Limits = NO_LIMITS,
) -> Space:
    """The candidates of a convolution.

    Args:
        kernels: instead of all that apply within `limits`.
    """
    if kernels is None:
        kernels = kernels_for(spec, epilogue, hardware, limits=limits)[0]
    pairs, illegal = _legal(kernels, spec, hardware)
    kept = _promising(pairs, spec, hardware)
    made: dict[tuple[str, Any], s_tir.Schedule] = {}
    for kernel, configs in _by_kernel(kept):
        for workload, group in _workloads(kernel, configs, spec, epilogue):
            generator, done = schedule_fn(kernel, group, hardware, illegal)
            with make_target(hardware):
                schedules = generator.generate_design_space(workload)
            made |= {(kernel.name, c): s for c, s in zip(done, schedules, strict=True)}
    out = [
        _candidate(kernel, config, made[kernel.name, config], default)
        for kernel, config, default in kept
        if (kernel.name, config) in made
    ]
    distinct: dict[tuple[str, str], Candidate] = {}  # configs may differ and programs be the same
    for candidate in out:
        distinct.setdefault((candidate.kernel.name, candidate.program), candidate)
    return Space(list(distinct.values()), illegal, len(pairs) - len(kept))


def schedule_fn(
    kernel: Kernel, configs: Sequence[Any], hardware: Hardware, illegal: dict[str, int]
) -> tuple[Any, list[Any]]:
    """(the ScheduleFn of one workload, the configs of its schedules once it has run).

    Configs that TVM refuses to schedule are counted in `illegal`.
    """
    done: list[Any] = []

    def schedules(sch: s_tir.Schedule) -> list[s_tir.Schedule]:
        assert kernel.schedule is not None
        out = []
        for config in configs:
            one = sch.copy()
            try:
                kernel.schedule(one, config, hardware)
            except s_tir.ScheduleError as error:
                reason = f"{kernel.name}: not schedulable: {str(error).splitlines()[0]}"
                illegal[reason] = illegal.get(reason, 0) + 1
                continue
            out.append(one)
            done.append(config)
        return out

    return ms.space_generator.ScheduleFn(
        schedules, sch_rules=[], postprocs=[], mutator_probs={}
    ), done


def workload_of(kernel: Kernel, config: Any, spec: ConvSpec, epilogue: Epilogue) -> tvm.IRModule:
    """The unscheduled program of a config, in the form MetaSchedule's databases want."""
    func = kernel.prim_func(spec, epilogue, config)
    return tvm.IRModule({"main": func.with_attr("global_symbol", "main")})


def _candidate(kernel: Kernel, config: Any, sch: s_tir.Schedule, default: bool) -> Candidate:
    return Candidate(kernel, config, sch, default, structural_hash(sch.mod))


def _legal(
    kernels: Sequence[Kernel], spec: ConvSpec, hardware: Hardware
) -> tuple[list[tuple[Kernel, Any, bool]], dict[str, int]]:
    """((kernel, config, is its default), ...) and the reasons of illegal ones."""
    pairs: list[tuple[Kernel, Any, bool]] = []
    illegal: dict[str, int] = {}
    for kernel in kernels:
        if kernel.schedule is None:
            continue  # dlight's: no knobs
        for i, config in enumerate(dict.fromkeys(kernel.configs(spec, hardware))):
            if (reason := kernel.illegal(config, spec, hardware)) is not None:
                illegal[reason] = illegal.get(reason, 0) + 1
            else:
                pairs.append((kernel, config, i == 0))
    return pairs, illegal


def _promising(
    pairs: list[tuple[Kernel, Any, bool]], spec: ConvSpec, hardware: Hardware
) -> list[tuple[Kernel, Any, bool]]:
    """Defaults first, then by estimate, without one last; the hopeless left out."""
    costs = [k.seconds(config, spec, hardware) if k.seconds else math.inf for k, config, _ in pairs]
    least = min(costs, default=0.0)
    ranked = sorted(zip(costs, pairs, strict=True), key=lambda cp: (not cp[1][2], cp[0]))
    return [
        pair for cost, pair in ranked if pair[2] or math.isinf(cost) or cost <= _HOPELESS * least
    ]


def _by_kernel(kept: list[tuple[Kernel, Any, bool]]) -> list[tuple[Kernel, list[Any]]]:
    groups: dict[str, tuple[Kernel, list[Any]]] = {}
    for kernel, config, _ in kept:
        groups.setdefault(kernel.name, (kernel, []))[1].append(config)
    return list(groups.values())


def _workloads(
    kernel: Kernel, configs: list[Any], spec: ConvSpec, epilogue: Epilogue
) -> list[tuple[tvm.IRModule, list[Any]]]:
    """The distinct programs of a kernel, each with its configs."""
    groups: dict[str, tuple[tvm.IRModule, list[Any]]] = {}
    for config in configs:
        mod = workload_of(kernel, config, spec, epilogue)
        groups.setdefault(structural_hash(mod), (mod, []))[1].append(config)
    return list(groups.values())
