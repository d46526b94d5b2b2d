"""Schedule every PrimFunc: ours as chosen, the rest by plain rules of ours, or dlight (CUDA)."""

from __future__ import annotations

from typing import Any

import tvm
import tvm.s_tir as s_tir
from tvm import tirx

from tvm_winograd.schedules.rest import default_cpu, default_cuda, recurrent

from ..choose.select import Choice
from ..errors import BuildError, UnsupportedError
from ..gpu import Cpu, Hardware, make_target
from ..shapes import ConvSpec
from .lower_convs import Layer
from .unit_sums import drop_unit_sums


def apply_schedules(
    mod: tvm.IRModule, layers: dict[str, Layer], hardware: Hardware
) -> tuple[tvm.IRModule, list[dict[str, Any]]]:
    """The scheduled module and, per function, {name, schedule, source, reason[, shared_bytes]}.

    Args:
        layers: function name -> a convolution that was lowered to it.
    """
    report, scheduled = [], {}
    with make_target(hardware):
        for gvar, func in mod.functions_items():
            if not isinstance(func, tirx.PrimFunc):
                continue
            layer = layers.get(gvar.name_hint)
            new, entry = schedule_function(func, layer.choice if layer else None, hardware)
            needed = needed_of(layer.choice, layer.spec) if layer else {}
            scheduled[gvar] = new.with_attr("tirx.is_scheduled", True)
            report.append({"name": gvar.name_hint, **entry, **needed})
    for gvar, func in scheduled.items():
        mod[gvar] = func
    return mod, report


def needed_of(choice: Choice, spec: ConvSpec) -> dict[str, int]:
    """{"shared_bytes": of a block} if the kernel says it: the runtime keeps it off smaller GPUs."""
    if choice.kernel.schedule is None:
        return {}
    shared = choice.kernel.shared_bytes(choice.config, spec)
    return {} if shared is None else {"shared_bytes": shared}


def schedule_function(
    func: tirx.PrimFunc, choice: Choice | None, hardware: Hardware
) -> tuple[tirx.PrimFunc, dict[str, Any]]:
    """One function and its report entry; the current target must be that of `hardware`."""
    if choice is not None and choice.kernel.schedule is not None:
        sch = s_tir.Schedule(func)
        choice.kernel.schedule(sch, choice.config, hardware)
        return sch.mod["main"], _entry(choice.kernel.name, choice.source, choice.reason)
    if func.attrs and func.attrs.get("tirx.is_scheduled"):  # made ready, as packing is in places
        return func, _entry("ready", "default", "made with its threads")
    reason = choice.reason if choice else "no convolution: not ours"
    cpu = hardware if isinstance(hardware, Cpu) else None
    if (walk := recurrent.schedule(func, cpu)) is not None:
        return walk, _entry("recurrent", "default", reason)
    if isinstance(hardware, Cpu):
        if not _has_blocks(func):  # loops that TVM writes out itself, such as a scatter's
            return func, _entry("sequential", "default", reason)
        sch = s_tir.Schedule(func)
        default_cpu.schedule(sch, hardware)
        return sch.mod["main"], _entry("default-cpu", "default", reason)
    if not _has_blocks(func):
        raise UnsupportedError(f"{_name(func)} has sequential loops only: no kernel for a GPU")
    if choice is None and (found := default_cuda.schedule(func, hardware)) is not None:
        return found[1], _entry(found[0], "default", reason)
    rule, done = dlight_schedule(func)
    return done, _entry(f"dlight.{rule}", "fallback", reason)


def _entry(schedule: str, source: str, reason: str) -> dict[str, Any]:
    return {"schedule": schedule, "source": source, "reason": reason}


def dlight_schedule(func: tirx.PrimFunc) -> tuple[str, tirx.PrimFunc]:
    """(the first dlight rule that can schedule the function, the scheduled function).

    A rule may misjudge a function: Reduction puts the threads of a sum around loops over outputs if
    a grouped convolution is not padded, which no pass can lower.
    """
    from tvm.s_tir import dlight

    func = drop_unit_sums(func)
    gpu = dlight.gpu
    for rule in (
        gpu.Matmul(), gpu.GEMV(), gpu.Reduction(), gpu.GeneralReduction(), gpu.Fallback(),
    ):  # fmt: skip
        try:
            space = rule.apply(func, tvm.target.Target.current(), False)
        except (s_tir.ScheduleError, AssertionError):  # a rule asserts what it expects
            continue  # the next one may take it
        if space is not None:
            sch = space[0] if isinstance(space, list) else space
            if _sums_across_threads_lower(sch.mod):
                return type(rule).__name__, sch.mod["main"]
    raise BuildError(f"no rule of TVM's can schedule {_name(func)} for a GPU")


def _name(func: tirx.PrimFunc) -> str:
    return str((func.attrs or {}).get("global_symbol") or "a function")


def _has_blocks(func: tirx.PrimFunc) -> bool:
    """Whether there is a loop nest to schedule, below a root block."""
    try:
        s_tir.Schedule(func).get_sblock("root")
    except s_tir.ScheduleError:
        return False
    return True


def _sums_across_threads_lower(mod: tvm.IRModule) -> bool:
    try:
        s_tir.transform.LowerCrossThreadReduction()(mod)
    except ValueError:  # TVM's, of a failed check
        return False
    return True
