"""One memory layout for a whole network, by estimated time; conversions only where it needs them.

Every convolution is chosen in each layout as lower_convs will choose it, and its kernel says how
long it takes; transposes that are left (at the network's ends, around operators that need an order
of axes) take the time of their bytes. The sums are compared. Without estimates (CPU kernels have
none) the network keeps its layout.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, dataclass
from math import inf
from typing import Any

import tvm

from tvm_winograd.schedules.base.product_time import stream_seconds

from ..choose.chooser import Chooser
from ..choose.options import LAYOUTS
from ..errors import UnsupportedError
from ..gpu import Gpu, Hardware
from ..ir.conv_spec import layer_names
from .convert_layout import convert_layout, given_layout, is_in, transposed_bytes
from .group_convs import find_groups
from .params import Params, fold_param_shapes, param_names

_SURE = 1.03  # times as fast as in the layout given, another must seem: estimates are no better


@dataclass(frozen=True)
class Layout:
    """The layout of a network's convolutions, and why."""

    chosen: str
    given: str  # of most of them before
    reason: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def choose_layout(
    mod: tvm.IRModule, params: Params, hardware: Hardware, choose: Chooser, wish: str = "auto"
) -> tuple[tvm.IRModule, Params, Layout | None]:
    """The network in the layout that is estimated to be fastest, or in `wish`.

    Args:
        mod, params: before group_convs. Inputs and outputs keep their shapes.
        choose: asked for every convolution in each layout.
        wish: "auto", or one of LAYOUTS (choose.options).
    Returns:
        The module, its parameters, and the decision; None where there is no convolution.
    Raises:
        UnsupportedError: a wish that the network cannot be brought to.
    """
    given = given_layout(mod)
    if given is None:
        return mod, params, None
    if wish != "auto":
        return *to_layout(mod, params, wish), Layout(wish, given, "asked for")
    if isinstance(hardware, Gpu):
        return _fastest(mod, params, given, hardware, choose)
    reason = f"as given: kernels for {hardware.arch} have no estimates"
    with suppress(UnsupportedError):  # of several layouts, and nothing can be done about it
        mod, params = to_layout(mod, params, given)
    return mod, params, Layout(given, given, reason)


def to_layout(mod: tvm.IRModule, params: Params, layout: str) -> tuple[tvm.IRModule, Params]:
    """The network with its convolutions in `layout`; itself, if they are.

    Raises:
        UnsupportedError: it cannot be rewritten.
    """
    if is_in(mod, layout):
        return mod, params
    made = convert_layout(mod, params, layout)
    if not is_in(made, layout):
        raise UnsupportedError(
            f"not every convolution can be brought to {layout}: one dataflow block is needed, and "
            "data layouts of the axes N, C, H, W"
        )
    return fold_param_shapes(made, params)


def _fastest(
    mod: tvm.IRModule, params: Params, given: str, gpu: Gpu, choose: Chooser
) -> tuple[tvm.IRModule, Params, Layout]:
    """The network in the layout of the shortest time; another than given must be clearly faster.

    A layout is left out if the network cannot be brought to it, or `choose` refuses a convolution.
    If that leaves none, the network stays: lower_convs will meet the same error.
    """
    best, shortest, reasons = (mod, params, given), inf, []
    for layout in dict.fromkeys((given, *LAYOUTS)):
        try:
            made = to_layout(mod, params, layout)
            convs = _conv_seconds(*made, gpu, choose)
        except UnsupportedError as error:
            reasons.append(f"{layout}: {error}")
            continue
        moved = transposed_bytes(*made)
        moving = sum(stream_seconds(2 * n, gpu) for n in moved)
        time = (convs + moving) * (_SURE if layout != given else 1.0)
        if time < shortest:
            best, shortest = (*made, layout), time
        text = f"{layout}: convolutions estimated {convs * 1e6:.1f} us"
        count = f"{len(moved)} transpose" + "s" * (len(moved) > 1)
        reasons.append(text + f" and {count} {moving * 1e6:.1f} us" * (len(moved) > 0))
    return best[0], best[1], Layout(best[2], given, "; ".join(reasons))


def _conv_seconds(mod: tvm.IRModule, params: Params, gpu: Gpu, choose: Chooser) -> float:
    """Estimated time of all convolutions; where a kernel has no estimate, that of its bytes."""
    groups, names = find_groups(mod["main"], params), param_names(mod["main"], params)
    layers = layer_names([names.get(group.conv.args[1], "") for group in groups])
    total = 0.0
    for name, group in zip(layers, groups, strict=True):
        choice = choose(name, group.spec, group.epilogue)
        if choice.kernel.seconds is None:
            total += stream_seconds(group.spec.bytes, gpu)
        else:
            total += choice.kernel.seconds(choice.config, group.spec, gpu)
    return total
