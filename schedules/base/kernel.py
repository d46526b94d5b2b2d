"""What a kernel is: one record of functions that selector, tuner, compiler and tests all call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any

import numpy as np

from tvm_winograd import precision
from tvm_winograd.errors import UnsupportedError
from tvm_winograd.shapes import ConvSpec, Epilogue


@dataclass(frozen=True, repr=False)
class Kernel:
    """One kernel family. `Any`: its frozen config dataclass, a gpu.Hardware, or a TVM object."""

    name: str  # unique, e.g. "winograd-f2-fused"
    algorithm: str  # what a user asks for, e.g. "winograd-f2"
    target: str  # "cuda" or "llvm"
    config: type
    # None, or the reason why this kernel cannot compute the convolution on that hardware
    supports: Callable[[ConvSpec, Epilogue, Any], str | None]
    # None, or the reason why this config is illegal for the convolution on that hardware
    illegal: Callable[[Any, ConvSpec, Any], str | None]
    # the legal configs worth trying, the default (chosen from the hardware) first
    configs: Callable[[ConvSpec, Any], list[Any]]
    # main(X, W[, B][, R], O), unscheduled; W is packed
    prim_func: Callable[[ConvSpec, Epilogue, Any], Any]
    # in place; the same function serves a fixed config and a search. None: TVM's dlight rules
    schedule: Callable[[Any, Any, Any], None] | None
    # (k, c/groups, r, s) -> packed weights, in numpy, at compile time
    pack_weights: Callable[[np.ndarray, ConvSpec, Any], np.ndarray]
    # main(W, packed), unscheduled: the same on the device
    weight_func: Callable[[ConvSpec, Any], Any]
    # what the build needs in its PassContext
    pass_config: dict[str, Any] = field(default_factory=dict)
    # None, or the reason why "auto" should pass it by although it applies
    not_worth: Callable[[ConvSpec, Any], str | None] = lambda spec, hardware: None
    # the estimated time of a config in seconds; None: no estimate
    seconds: Callable[[Any, ConvSpec, Any], float] | None = None
    # bytes of device memory that a call needs beside its arguments
    workspace: Callable[[Any, ConvSpec], int] = lambda config, spec: 0
    # False if two runs may differ in their last bits
    deterministic: bool = True
    # of precision.NAMES: how products of floating values are computed
    math: str = "fma"

    def __repr__(self) -> str:
        return f"Kernel({self.name!r})"  # not its fourteen functions

    def math_of(self, spec: ConvSpec) -> str:
        """How it computes the products of a convolution: a name of precision.NAMES."""
        return self.math if spec.acc == "float32" else precision.plain(spec.dtype)

    def make_config(self, values: dict[str, Any]) -> Any:
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


def mistyped(config: Any) -> str | None:
    """None, or which field of a config has another type than its class says."""
    types = {"int": int, "str": str, "bool": bool}
    for known in fields(config):
        value, wanted = getattr(config, known.name), types.get(str(known.type))
        if wanted is None and known.default is not MISSING and known.default is not None:
            wanted = type(known.default)
        if wanted is not None and type(value) is not wanted:
            return f"{known.name}={value!r} is no {wanted.__name__}"
    return None


def config_dict(config: Any) -> dict[str, Any]:
    """A config as JSON-able values, the inverse of `Kernel.make_config`."""
    return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(config).items()}
