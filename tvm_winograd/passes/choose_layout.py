"""One memory layout for a whole network, by estimated time; conversions only where it needs them.

Every convolution is chosen in each layout as lower_convs will choose it, and its kernel says how
long it takes; transposes that are left (at the network's ends, around operators that need an order
of axes) take the time of their bytes. The sums are compared. Without estimates (CPU kernels have
none) the network keeps its layout.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import tvm

from tvm_winograd.schedules.product_time import stream_seconds

from ..errors import UnsupportedError
from ..gpu import Gpu, Hardware
from .conv_spec import layer_names
from .convert_layout import convert_layout, given_layout, is_in, transposed_bytes
from .group_convs import find_groups
from .lower_convs import Chooser
from .params import Params, fold_param_shapes, param_names

LAYOUTS = ("NCHW", "NHWC")  # to convert to
WISHES = ("auto", *LAYOUTS)


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
        wish: of WISHES.
    Returns:
        The module, its parameters, and the decision; None where there is no convolution.
    Raises:
        UnsupportedError: another wish.
    """
    check_wish(wish)
    given = given_layout(mod)
    if given is None:
        return mod, params, None
    if wish != "auto":
        return *to_layout(mod, params, wish), Layout(wish, given, "asked for")
    if not isinstance(hardware, Gpu):
        reason = f"as given: kernels for {hardware.arch} have no estimates"
        return *to_layout(mod, params, given), Layout(given, given, reason)
    found = {n: to_layout(mod, params, n) for n in dict.fromkeys((given, *LAYOUTS))}
    chosen, reason = _fastest(found, hardware, choose)
    return *found[chosen], Layout(chosen, given, reason)


def check_wish(wish: str) -> None:
    """Raises:
    UnsupportedError: not of WISHES.
    """
    if wish not in WISHES:
        raise UnsupportedError(f"layout={wish!r}: there are {', '.join(WISHES)}")


def to_layout(mod: tvm.IRModule, params: Params, layout: str) -> tuple[tvm.IRModule, Params]:
    """The network with its convolutions in `layout`; itself, if they are."""
    if is_in(mod, layout):
        return mod, params
    return fold_param_shapes(convert_layout(mod, params, layout), params)


def _fastest(
    found: Mapping[str, tuple[tvm.IRModule, Params]], gpu: Gpu, choose: Chooser
) -> tuple[str, str]:
    """The layout of the shortest time, the first of equals, and the figures.

    One with a convolution that `choose` refuses is left out. If that leaves none, the first:
    lower_convs will meet the same error.
    """
    times: dict[str, float] = {}
    reasons = []
    for layout, (mod, params) in found.items():
        try:
            convs = _conv_seconds(mod, params, gpu, choose)
        except UnsupportedError as error:
            reasons.append(f"{layout}: {error}")
            continue
        moved = transposed_bytes(mod, params)
        moving = sum(stream_seconds(2 * n, gpu) for n in moved)
        times[layout] = convs + moving
        text = f"{layout}: convolutions estimated {convs * 1e6:.1f} us"
        count = f"{len(moved)} transpose" + "s" * (len(moved) > 1)
        reasons.append(text + f" and {count} {moving * 1e6:.1f} us" * (len(moved) > 0))
    return min(times, key=lambda n: times[n], default=next(iter(found))), "; ".join(reasons)


def _conv_seconds(mod: tvm.IRModule, params: Params, gpu: Gpu, choose: Chooser) -> float:
    """Estimated time of all convolutions; where a kernel has no estimate, that of its bytes."""
    groups, names = find_groups(mod["main"]), param_names(mod["main"], params)
    layers = layer_names([names.get(group.conv.args[1], "") for group in groups])
    total = 0.0
    for name, group in zip(layers, groups, strict=True):
        choice = choose(name, group.spec, group.epilogue)
        if choice.kernel.seconds is None:
            total += stream_seconds(group.spec.bytes, gpu)
        else:
            total += choice.kernel.seconds(choice.config, group.spec, gpu)
    return total
