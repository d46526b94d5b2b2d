"""The only file that knows the order of the passes: PHASES, from top to bottom.

folded      clips in one form; transposes around convolutions cancel; batch norm and bias go into
            convolutions; dense layers with long sums become 1x1 convolutions, transposed
            convolutions plain ones
layout      the whole network to NCHW or NHWC, conversions at its ends
grouped     each convolution with its epilogue
lowered     chosen, and PrimFuncs of ours; max|x| handed from kernel to kernel
legalized   everything else to PrimFuncs, fused
scheduled   ours first, then dlight or the plain CPU rule; workspaces become arguments
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import relax

from ..gpu import Hardware, make_target
from . import extremes, ragged_pools
from .apply_schedules import apply_schedules
from .chain_peaks import chain_peaks
from .choose_layout import Layout, choose_layout, to_layout
from .convert_layout import cancel_transposes
from .dense_to_conv import dense_to_conv
from .fold_batch_norm import FoldReport, fold_batch_norm
from .group_convs import group_convs
from .lower_convs import Chooser, Layer, lower_convs
from .merge_clips import merge_clips
from .name_variables import name_variables
from .params import Params, fold_param_shapes
from .plan_workspaces import Workspace, plan_workspaces
from .refuse_left import refuse_left
from .transposed_convs import transposed_convs

Dump = Callable[[str, tvm.IRModule], None]


@dataclass(frozen=True)
class Lowered:
    """A network ready to build: "main"(inputs, params tuple) and scheduled PrimFuncs."""

    mod: tvm.IRModule
    params: Params
    layers: list[Layer]
    functions: list[dict[str, Any]]
    pass_config: dict[str, Any]
    notes: list[str]
    workspaces: dict[str, list[Workspace]]  # of each function
    layout: Layout | None  # None: no convolutions


@dataclass
class Network:
    """A network on its way through the phases; each step changes it in place."""

    mod: tvm.IRModule
    params: Params
    batch_norms: FoldReport | None = None


@dataclass
class _Lowering(Network):
    """The same, with what is wanted of it and what has been decided."""

    hardware: Hardware = field(kw_only=True)
    choose: Chooser = field(kw_only=True)
    estimate: Chooser = field(kw_only=True)
    wish: str = field(kw_only=True)  # layout, as asked for
    layout: Layout | None = None
    layers: list[Layer] = field(default_factory=list)
    functions: list[dict[str, Any]] = field(default_factory=list)
    workspaces: dict[str, list[Workspace]] = field(default_factory=dict)


def lower(
    mod: tvm.IRModule,
    params: Params,
    hardware: Hardware,
    choose: Chooser,
    dump: Dump = lambda phase, mod: None,
    *,
    layout: str = "auto",
    estimate: Chooser | None = None,
) -> Lowered:
    """Run every phase on an imported network.

    Args:
        mod, params: as a frontend gives them (frontend.Model).
        choose: (layer name, spec, epilogue) -> Choice.
        dump: called with (phase, module) after each phase.
        layout, estimate: see choose_layout; by default `choose` is asked.
    """
    net = _lowering(mod, params, hardware, choose, layout, estimate)
    dump("imported", mod)
    for phase, steps in PHASES:
        for step in steps:
            step(net)
        dump(phase, net.mod)
    config = merge_pass_configs(net.layers)
    return Lowered(
        net.mod, net.params, net.layers, net.functions, config, _notes(net), net.workspaces,
        net.layout,
    )  # fmt: skip


def choose_layers(
    mod: tvm.IRModule,
    params: Params,
    hardware: Hardware,
    choose: Chooser,
    *,
    layout: str = "auto",
    estimate: Chooser | None = None,
) -> tuple[list[Layer], Layout | None]:
    """Every convolution of an imported network with its choice, and the layout of all of them;
    nothing is scheduled. Arguments as of `lower`."""
    net = _lowering(mod, params, hardware, choose, layout, estimate)
    for phase, steps in PHASES:
        for step in steps:
            step(net)
        if phase == "lowered":
            break
    return net.layers, net.layout


def network_in(mod: tvm.IRModule, params: Params, layout: str) -> tuple[tvm.IRModule, Params]:
    """An imported network with the very convolutions that are lowered in `layout`, in relax."""
    net = Network(mod, params)
    for step in FOLD:
        step(net)
    return to_layout(net.mod, net.params, layout)


def _lowering(
    mod: tvm.IRModule,
    params: Params,
    hardware: Hardware,
    choose: Chooser,
    wish: str,
    estimate: Chooser | None,
) -> _Lowering:
    return _Lowering(
        mod, params, hardware=hardware, choose=choose, estimate=estimate or choose, wish=wish
    )


def _merge_clips(net: Network) -> None:
    net.mod = merge_clips(net.mod)


def _cancel_transposes(net: Network) -> None:
    net.mod = cancel_transposes(net.mod, net.params)


def _fold_batch_norm(net: Network) -> None:
    net.mod, net.params, net.batch_norms = fold_batch_norm(net.mod, net.params)


def _dense_to_conv(net: Network) -> None:
    net.mod, net.params = dense_to_conv(net.mod, net.params)


def _transposed_convs(net: Network) -> None:
    net.mod, net.params = transposed_convs(net.mod, net.params)


def _tidy(net: Network) -> None:
    mod = tvm.transform.Sequential(_tidy_passes())(net.mod)
    net.mod, net.params = fold_param_shapes(mod, net.params)


def _choose_layout(net: _Lowering) -> None:
    net.mod, net.params, net.layout = choose_layout(
        net.mod, net.params, net.hardware, net.estimate, net.wish
    )


def _group_convs(net: Network) -> None:
    net.mod = group_convs(net.mod, net.params)


def _lower_convs(net: _Lowering) -> None:
    net.mod, net.params, net.layers = lower_convs(net.mod, net.params, net.choose)


def _chain_peaks(net: _Lowering) -> None:
    net.mod, net.layers = chain_peaks(net.mod, net.layers)


def _name_variables(net: Network) -> None:
    net.mod = name_variables(net.mod)


def _legalize(net: _Lowering) -> None:
    with make_target(net.hardware):
        net.mod = tvm.transform.Sequential(_legalize_passes())(net.mod)


def _refuse_left(net: Network) -> None:
    refuse_left(net.mod)


def _apply_schedules(net: _Lowering) -> None:
    layers = {layer.function: layer for layer in net.layers}
    net.mod, net.functions = apply_schedules(net.mod, layers, net.hardware)


def _plan_workspaces(net: _Lowering) -> None:
    net.mod, net.workspaces = plan_workspaces(net.mod)


def _bundle_params(net: Network) -> None:
    net.mod = relax.transform.BundleModelParams()(net.mod)


FOLD: tuple[Callable[[Network], None], ...] = (
    _merge_clips,
    _cancel_transposes,
    _fold_batch_norm,
    _dense_to_conv,
    _tidy,
    _transposed_convs,
)
PHASES: tuple[tuple[str, tuple[Callable[[_Lowering], None], ...]], ...] = (
    ("folded", FOLD),
    ("layout", (_choose_layout,)),
    ("grouped", (_group_convs,)),
    ("lowered", (_lower_convs, _chain_peaks, _name_variables)),
    ("legalized", (_legalize, _refuse_left)),
    ("scheduled", (_apply_schedules, _plan_workspaces, _bundle_params)),
)


def _notes(net: _Lowering) -> list[str]:
    """What a user should know of the decisions."""
    left = net.batch_norms.left if net.batch_norms else {}
    notes = [f"batch norm {name} is not folded: {why}" for name, why in left.items()]
    if net.layout and net.layout.chosen != net.layout.given:
        chosen, given, reason = net.layout.chosen, net.layout.given, net.layout.reason
        notes.append(f"layout {chosen} instead of {given}: {reason}")
    return notes


def merge_pass_configs(layers: list[Layer]) -> dict[str, Any]:
    """What the kernels of a network need in their common PassContext."""
    merged: dict[str, Any] = {}
    for layer in layers:
        merged.update(layer.choice.kernel.pass_config)
    return merged


def _tidy_passes() -> list[Any]:
    return [
        relax.transform.DecomposeOpsForInference(),
        relax.transform.CanonicalizeBindings(),
        relax.transform.FoldConstant(),
        relax.transform.DeadCodeElimination(),
    ]


def _legalize_passes() -> list[Any]:
    return [
        relax.transform.LegalizeOps({**ragged_pools.legalizations(), **extremes.legalizations()}),
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FoldConstant(),
        relax.transform.FuseOps(),
        relax.transform.FuseTIR(),
        relax.transform.RewriteDataflowReshape(),  # a view, no kernel to schedule
        relax.transform.DeadCodeElimination(),
    ]
