"""The only file that knows the order of the passes.

import     clips in one form; transposes around convolutions cancel; fold batch norm (and bias)
           into convolutions, decompose what is left; dense layers with long sums become 1x1
           convolutions
layout     the whole network to NCHW or NHWC, conversions at its ends
convs      group each convolution with its epilogue, choose, lower to our PrimFuncs
rest       legalise and fuse everything else
schedules  ours first, then dlight or the plain CPU rule; workspaces become arguments
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax

from ..gpu import Hardware, make_target
from . import ragged_pools
from .apply_schedules import apply_schedules
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
    dump("imported", mod)
    mod, params, report = _fold(mod, params)
    dump("folded", mod)
    mod, params, decided = choose_layout(mod, params, hardware, estimate or choose, layout)
    dump("layout", mod)
    mod = group_convs(mod)
    dump("grouped", mod)
    mod, params, layers = lower_convs(mod, params, choose)
    mod = name_variables(mod)
    dump("lowered", mod)
    with make_target(hardware):
        mod = tvm.transform.Sequential(_legalize_passes())(mod)
    refuse_left(mod)
    dump("legalized", mod)
    mod, functions = apply_schedules(mod, {layer.function: layer for layer in layers}, hardware)
    mod, workspaces = plan_workspaces(mod)
    mod = relax.transform.BundleModelParams()(mod)
    dump("scheduled", mod)
    notes = [f"batch norm {name} is not folded: {why}" for name, why in report.left.items()]
    config = merge_pass_configs(layers)
    if decided and decided.chosen != decided.given:
        notes.append(f"layout {decided.chosen} instead of {decided.given}: {decided.reason}")
    return Lowered(mod, params, layers, functions, config, notes, workspaces, decided)


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
    mod, params, _ = _fold(mod, params)
    mod, params, decided = choose_layout(mod, params, hardware, estimate or choose, layout)
    return lower_convs(group_convs(mod), params, choose)[2], decided


def network_in(mod: tvm.IRModule, params: Params, layout: str) -> tuple[tvm.IRModule, Params]:
    """An imported network with the very convolutions that are lowered in `layout`, in relax."""
    mod, params, _ = _fold(mod, params)
    return to_layout(mod, params, layout)


def _fold(mod: tvm.IRModule, params: Params) -> tuple[tvm.IRModule, Params, FoldReport]:
    mod, params, report = fold_batch_norm(cancel_transposes(merge_clips(mod), params), params)
    mod, params = dense_to_conv(mod, params)
    mod = tvm.transform.Sequential(_tidy_passes())(mod)
    return *fold_param_shapes(mod, params), report


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
        relax.transform.LegalizeOps(ragged_pools.legalizations()),
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FoldConstant(),
        relax.transform.FuseOps(),
        relax.transform.FuseTIR(),
        relax.transform.RewriteDataflowReshape(),  # a view, no kernel to schedule
        relax.transform.DeadCodeElimination(),
    ]
