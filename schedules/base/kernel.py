"""What a kernel is: one record of functions that selector, tuner, compiler and tests all call."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import MISSING, asdict, dataclass, field, fields
from functools import cache
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np

from tvm_winograd import precision
from tvm_winograd.errors import UnsupportedError
from tvm_winograd.gpu import Hardware
from tvm_winograd.shapes import ConvSpec, Epilogue

from .legal import Needs

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

C = TypeVar("C", bound="DataclassInstance")  # a kernel's frozen config


@dataclass(frozen=True, repr=False, eq=False)  # there is one of each: equal is the same
class Kernel(Generic[C]):
    """One kernel family. `Any`: a Gpu or a Cpu, as the family's `target` says, or a TVM object."""

    name: str  # unique, e.g. "winograd-f2-fused"
    algorithm: str  # what a user asks for, e.g. "winograd-f2"
    target: Literal["cuda", "llvm"]
    config: type[C]
    # None, or the reason why the family cannot compute the convolution, whatever the config
    own_supports: Callable[[ConvSpec, Epilogue, Any], str | None]
    # None, or the reason why this config is illegal for the convolution on that hardware
    own_illegal: Callable[[C, ConvSpec, Any], str | None]
    # the legal configs worth trying, the default (chosen from the hardware) first
    configs: Callable[[ConvSpec, Any], list[C]]
    # main(X, W[, B][, R], O), unscheduled; W is packed
    prim_func: Callable[[ConvSpec, Epilogue, C], Any]
    # in place; the same function serves a fixed config and a search. None: TVM's dlight rules
    schedule: Callable[[Any, C, Any], None] | None
    # (k, c/groups, r, s) -> packed weights, in numpy, at compile time
    pack_weights: Callable[[np.ndarray, ConvSpec, C], np.ndarray]
    # main(W, packed), unscheduled: the same on the device
    weight_func: Callable[[ConvSpec, C], Any]
    # what the kernels of a config take of a GPU; None: the target is no GPU, or TVM decides
    needs: Callable[[C, ConvSpec], Needs] | None = None
    # of these configs one is legal where the kernel can compute; None: `configs`
    trial: Callable[[ConvSpec, Any], Iterable[C]] | None = None
    # what the build needs in its PassContext
    pass_config: dict[str, Any] = field(default_factory=dict)
    # None, or the reason why "auto" should pass it by although it applies
    not_worth: Callable[[ConvSpec, Any], str | None] = lambda spec, hardware: None
    # the estimated time of a config in seconds; None: no estimate
    seconds: Callable[[C, ConvSpec, Any], float] | None = None
    # less than any config's estimate; a kernel that cannot win by it is passed by unsearched
    least: Callable[[ConvSpec, Any], float] | None = None
    # bytes of device memory that a call needs beside its arguments
    workspace: Callable[[C, ConvSpec], int] = lambda config, spec: 0
    # False if two runs may differ in their last bits
    deterministic: bool = True
    # of precision.NAMES: how products of floating values are computed
    math: str = "fma"
    # main(X, W[, B][, R][, S][, T], O): takes max|x| of each image (given), raises that of the
    # output (written); None: it has no use for them
    peaks: Callable[[ConvSpec, Epilogue, C, bool, bool], Any] | None = None

    def __repr__(self) -> str:
        return f"Kernel({self.name!r})"  # not its fifteen functions

    def math_of(self, spec: ConvSpec) -> str:
        """How it computes the products of a convolution: a name of precision.NAMES."""
        return self.math if spec.acc == "float32" else precision.plain(spec.dtype)

    def supports(self, spec: ConvSpec, epilogue: Epilogue, hardware: Hardware) -> str | None:
        """None, or the reason why this kernel cannot compute the convolution on `hardware`."""
        if reason := self._elsewhere(hardware) or self.own_supports(spec, epilogue, hardware):
            return reason
        reason = f"{self.name} has no config for it"
        for config in (self.trial or self.configs)(spec, hardware):
            if (illegal := self.own_illegal(config, spec, hardware)) is None:
                return None
            reason = illegal
        return reason

    def illegal(self, config: C, spec: ConvSpec, hardware: Hardware) -> str | None:
        """None, or the reason why `config` cannot run the convolution on `hardware`."""
        reason = self._elsewhere(hardware) or mistyped(config)
        return reason or self.own_illegal(config, spec, hardware)

    def shared_bytes(self, config: C, spec: ConvSpec) -> int | None:
        """Bytes of shared memory that a block needs, at most; None: on no GPU, or TVM decides."""
        return None if self.needs is None else self.needs(config, spec).shared_bytes

    def _elsewhere(self, hardware: Hardware) -> str | None:
        """None, or why no kernel of this family runs on that kind of hardware."""
        if hardware.kind == self.target:
            return None
        return f"{self.name} compiles for {self.target}, got {hardware.kind} ({hardware.arch})"

    def make_config(self, values: dict[str, Any]) -> C:
        """The config described by a dict (of a log or a file).

        Raises:
            UnsupportedError: a field this kernel does not have, or a missing one.
        """
        known = {f.name for f in fields(self.config)}
        if unknown := set(values) - known:
            raise UnsupportedError(
                f"config of {self.name}: no field {', '.join(sorted(unknown))}; "
                f"there are {', '.join(sorted(known))}"
            )
        frozen = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
        try:
            config = self.config(**frozen)
        except TypeError as error:
            raise UnsupportedError(f"config of {self.name}: {error}") from error
        if reason := mistyped(config):
            raise UnsupportedError(f"config of {self.name}: {reason}")
        return config


def mistyped(config: DataclassInstance) -> str | None:
    """None, or which field of a config has a value that its annotation does not allow.

    Checked are int, str, bool and `Literal`; a field of another type is compared with its default.
    """
    hints = _hints(type(config))
    for known in fields(config):
        value, wanted = getattr(config, known.name), hints[known.name]
        if get_origin(wanted) is Literal:
            if not any(type(value) is type(v) and value == v for v in get_args(wanted)):
                return f"{known.name}={value!r}: {_alternatives(get_args(wanted))}"
            continue
        if wanted not in (int, str, bool):
            if known.default is MISSING or known.default is None:
                continue
            wanted = type(known.default)
        if type(value) is not wanted:
            return f"{known.name}={value!r} is no {wanted.__name__}"
    return None


@cache  # evaluates a class's annotations, which are text
def _hints(config: type) -> dict[str, Any]:
    return get_type_hints(config)


def _alternatives(values: tuple[Any, ...]) -> str:
    """What a knob with one of these values may be, for an error's text."""
    if len(values) < 3:
        return " or ".join(f'"{value}"' for value in values)
    return f"one of {', '.join(map(str, values))}"


def config_dict(config: DataclassInstance) -> dict[str, Any]:
    """A config as JSON-able values, the inverse of `Kernel.make_config`."""
    return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(config).items()}
