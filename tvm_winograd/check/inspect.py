"""The debug ladder of one model: choice > config > trace > stages > IR > CUDA > resources."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import tvm.s_tir as s_tir

from tvm_winograd.schedules.base.stages import watched

from ..choose.chooser import make_chooser
from ..choose.options import Wishes
from ..conv import CompiledConv
from ..errors import UnsupportedError
from ..frontend import Model
from ..gpu import Hardware, make_target
from ..passes.choose_layout import Layout
from ..passes.lower_convs import Layer
from ..passes.pipeline import choose_layers

WHAT = ("choice", "config", "trace", "stages", "ir", "cuda", "resources")


def layers_of(model: Model, hardware: Hardware, wishes: Wishes | None = None) -> list[Layer]:
    """Every convolution of a model with its choice; nothing is compiled."""
    return choices_of(model, hardware, wishes)[0]


def choices_of(
    model: Model, hardware: Hardware, wishes: Wishes | None = None
) -> tuple[list[Layer], Layout | None]:
    """The same, and the layout of all of them (None: there are none)."""
    wishes = wishes or Wishes()
    return choose_layers(
        model.mod,
        model.params,
        hardware,
        make_chooser(hardware, wishes),
        layout=wishes.layout,
        estimate=make_chooser(hardware, wishes, tables=False),
    )


def pick(layers: list[Layer], name: str | None) -> list[Layer]:
    """The layer called `name`, or all.

    Raises:
        UnsupportedError: no layer of that name; the message lists them.
    """
    chosen = [layer for layer in layers if name in (None, layer.name)]
    if not chosen and name is not None:
        have = ", ".join(layer.name for layer in layers) or "none"
        raise UnsupportedError(f"layer {name!r}: the model's convolutions are {have}")
    return chosen


def describe(layers: Iterable[Layer], hardware: Hardware, what: str) -> list[dict[str, Any]]:
    """One dict per distinct function: {layer, function, <what>}.

    Raises:
        UnsupportedError: an unknown `what`, or device code of a CPU target.
    """
    if what not in WHAT:
        raise UnsupportedError(f"what={what!r}: there are {', '.join(WHAT)}")
    if what in ("cuda", "resources") and hardware.kind != "cuda":
        raise UnsupportedError(f"--what {what} needs --target cuda")
    show = _SHOWS[what]
    seen: set[str] = set()
    out = []
    for layer in layers:
        if layer.function in seen and what not in ("choice", "config"):
            continue
        seen.add(layer.function)
        out.append({"layer": layer.name, "function": layer.function, what: show(layer, hardware)})
    return out


def _choice(layer: Layer, hardware: Hardware) -> dict[str, Any]:
    return layer.as_dict()


def _config(layer: Layer, hardware: Hardware) -> str:
    return json.dumps(layer.choice.as_dict()["config"])


def _trace(layer: Layer, hardware: Hardware) -> str:
    """The schedule's primitives as Python."""
    if layer.choice.kernel.schedule is None:
        return "scheduled by TVM's dlight rules: no trace"
    return str(_scheduled(layer, hardware).trace)


def _stages(layer: Layer, hardware: Hardware) -> list[dict[str, str]]:
    """{stage, loops, ir} of the program before the schedule, and behind each of its stages."""
    kernel = layer.choice.kernel
    func = kernel.prim_func(layer.spec, layer.epilogue, layer.choice.config)
    out = [{"stage": "before", "loops": "one nest a block, as TE made them", "ir": func.script()}]
    if kernel.schedule is None:
        return out  # TVM's dlight rules are not ours to watch
    with watched() as seen:
        _scheduled(layer, hardware)
    return out + [{"stage": s.name, "loops": s.loops, "ir": s.script} for s in seen]


def _scheduled(layer: Layer, hardware: Hardware) -> s_tir.Schedule:
    """The layer's schedule, as chosen; the kernel has one."""
    kernel, config = layer.choice.kernel, layer.choice.config
    assert kernel.schedule is not None
    sch = s_tir.Schedule(kernel.prim_func(layer.spec, layer.epilogue, config))
    with make_target(hardware):
        kernel.schedule(sch, config, hardware)
    return sch


def _compiled(layer: Layer, hardware: Hardware) -> CompiledConv:
    return CompiledConv(layer.spec, layer.epilogue, hardware, layer.choice)


def _ir(layer: Layer, hardware: Hardware) -> str:
    from ..conv import scheduled

    mod, _ = scheduled(layer.spec, layer.epilogue, hardware, layer.choice)
    return mod["conv"].script()


def _cuda(layer: Layer, hardware: Hardware) -> str:
    return _compiled(layer, hardware).source()


def _resources(layer: Layer, hardware: Hardware) -> list[dict[str, Any]]:
    from dataclasses import asdict

    return [asdict(r) for r in _compiled(layer, hardware).resources()]


_SHOWS: dict[str, Callable[[Layer, Hardware], Any]] = {
    "choice": _choice,
    "config": _config,
    "trace": _trace,
    "stages": _stages,
    "ir": _ir,
    "cuda": _cuda,
    "resources": _resources,
}
