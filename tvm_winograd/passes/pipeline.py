"""The only file that knows the order of the passes.

import     fold batch norm (and bias) into convolutions, decompose what is left; dense layers with
           long sums become 1x1 convolutions
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
from .apply_schedules import apply_schedules
from .dense_to_conv import dense_to_conv
from .fold_batch_norm import FoldReport, fold_batch_norm
from .group_convs import group_convs
from .lower_convs import Chooser, Layer, lower_convs
from .params import Params, fold_param_shapes
from .plan_workspaces import Workspace, plan_workspaces

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


def lower(
    mod: tvm.IRModule,
    params: Params,
    hardware: Hardware,
    choose: Chooser,
    dump: Dump = lambda phase, mod: None,
) -> Lowered:
    """Run every phase on an imported network.

    Args:
        mod, params: as a frontend gives them (frontend.Model).
        choose: (layer name, spec, epilogue) -> Choice.
        dump: called with (phase, module) after each phase.
    """
    mod, params, layers, report = _lower_convs(mod, params, choose, dump)
    with make_target(hardware):
        mod = tvm.transform.Sequential(_legalize_passes())(mod)
    dump("legalized", mod)
    choices = {layer.function: layer.choice for layer in layers}
    mod, functions = apply_schedules(mod, choices, hardware)
    mod, workspaces = plan_workspaces(mod)
    mod = relax.transform.BundleModelParams()(mod)
    dump("scheduled", mod)
    notes = [f"batch norm {name} is not folded: {why}" for name, why in report.left.items()]
    config = merge_pass_configs(layers)
    return Lowered(mod, params, layers, functions, config, notes, workspaces)


def choose_layers(mod: tvm.IRModule, params: Params, choose: Chooser) -> list[Layer]:
    """Every convolution of an imported network with its choice; nothing is scheduled."""
    return _lower_convs(mod, params, choose, lambda phase, mod: None)[2]


def _lower_convs(
    mod: tvm.IRModule, params: Params, choose: Chooser, dump: Dump
) -> tuple[tvm.IRModule, Params, list[Layer], FoldReport]:
    dump("imported", mod)
    mod, params, report = fold_batch_norm(mod, params)
    mod, params = dense_to_conv(mod, params)
    mod = tvm.transform.Sequential(_tidy_passes())(mod)
    mod, params = fold_param_shapes(mod, params)
    dump("folded", mod)
    mod = group_convs(mod)
    dump("grouped", mod)
    mod, params, layers = lower_convs(mod, params, choose)
    dump("lowered", mod)
    return mod, params, layers, report


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
        relax.transform.LegalizeOps(),
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FoldConstant(),
        relax.transform.FuseOps(),
        relax.transform.FuseTIR(),
        relax.transform.RewriteDataflowReshape(),  # a view, no kernel to schedule
        relax.transform.DeadCodeElimination(),
    ]
