"""Which kernel computes a convolution, with which config, and why.

Called in one place of the compiler and by `conv2d`. First hit wins: explicit config, tuning log
(this convolution, then the nearest), the default config of the kernel estimated to be fastest.
The user's limits hold for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import inf
from typing import Any

from tvm_winograd.schedules import KERNELS
from tvm_winograd.schedules.base.kernel import Kernel, config_dict

from .. import precision
from ..errors import UnsupportedError
from ..gpu import Cpu, Hardware
from ..shapes import ConvSpec, Epilogue
from ..tables import lookup as logs
from ..truth.tolerances import tolerance
from .options import NO_LIMITS, Limits, check_algorithm


@dataclass(frozen=True)
class Choice:
    """A decision and its reason. `source`: explicit, log, log-nearest, default or fallback."""

    kernel: Kernel
    config: Any
    source: str
    reason: str

    @property
    def algorithm(self) -> str:
        return self.kernel.algorithm

    def as_dict(self) -> dict[str, Any]:
        return {
            "algorithm": self.algorithm,
            "kernel": self.kernel.name,
            "config": config_dict(self.config),
            "source": self.source,
            "reason": self.reason,
        }


def forbidden(limits: Limits, kernel: Kernel, spec: ConvSpec) -> str | None:
    """None, or why limits allow no config of a kernel."""
    if not any(_matches(kernel, name) for name in limits.algorithms):
        return f"{kernel.algorithm} is none of the allowed {', '.join(limits.algorithms)}"
    math, may = kernel.math_of(spec), precision.allowed(limits.math, spec.dtype)
    if math not in may:
        return f"{kernel.name} computes with {math}; math {limits.math} allows {', '.join(may)}"
    limit = tolerance(spec, kernel.algorithm, math)
    if limits.max_error is not None and limit > limits.max_error:
        return f"{kernel.algorithm} may err by {limit:.0e}; {limits.max_error:.0e} is allowed"
    if limits.deterministic and not kernel.deterministic:
        return f"{kernel.name}'s last bits may differ from run to run"
    return None


def allows(limits: Limits, kernel: Kernel, config: Any, spec: ConvSpec) -> bool:
    """Whether the workspace of a config is small enough."""
    return limits.workspace is None or kernel.workspace(config, spec) <= limits.workspace


def candidates(
    spec: ConvSpec,
    epilogue: Epilogue,
    hardware: Hardware,
    algorithm: str = "auto",
    limits: Limits = NO_LIMITS,
) -> tuple[list[Kernel], dict[str, str]]:
    """(kernels that apply, preferred first; kernel name -> reason why it does not).

    Raises:
        UnsupportedError: an algorithm that does not exist on this target.
    """
    asked = kernels_of(algorithm, hardware)
    reasons = {
        k.name: epilogue.unfit(spec)
        or k.supports(spec, epilogue, hardware)
        or precision.missing(k.math_of(spec), hardware.arch)
        or forbidden(limits, k, spec)
        for k in asked
    }
    refused = {name: why for name, why in reasons.items() if why is not None}
    return [k for k in asked if k.name not in refused], refused


def kernels_of(algorithm: str, hardware: Hardware) -> list[Kernel]:
    """All kernels of an algorithm on this target, preferred first.

    Raises:
        UnsupportedError: there is none.
    """
    check_algorithm(algorithm)
    asked = [k for k in KERNELS if k.target == hardware.kind and _matches(k, algorithm)]
    if not asked:
        have = sorted({k.algorithm for k in KERNELS if k.target == hardware.kind})
        raise UnsupportedError(
            f"algorithm={algorithm!r} has no kernel for {hardware.kind} yet; "
            f"there are auto, winograd, {', '.join(have)}"
        )
    return asked


def choose(
    spec: ConvSpec,
    epilogue: Epilogue,
    hardware: Hardware,
    *,
    algorithm: str = "auto",
    config: Any = None,
    rows: Sequence[logs.Row] = (),
    gpu_name: str | None = None,
    limits: Limits = NO_LIMITS,
) -> Choice:
    """The kernel and config for one convolution.

    Raises:
        UnsupportedError: nothing that was asked for can compute it; the message says why.
    """
    kernels, refused = candidates(spec, epilogue, hardware, algorithm, limits)
    if not kernels:
        why = "; ".join(sorted(set(refused.values())))
        raise UnsupportedError(f"{algorithm} cannot compute {spec.key()}: {why}")
    if config is not None:
        _check_refused(config, kernels, refused, spec)
        return _explicit(kernels, config, spec, hardware, limits)
    rows = [row for row in rows if not row.wrong]
    found = _logged(kernels, spec, epilogue, hardware, rows, gpu_name, limits)
    found = found or _default(kernels, refused, spec, hardware, limits)
    asked = "" if algorithm == "auto" else f"{algorithm} asked for; "
    return replace(found, reason=asked + found.reason)


def _matches(kernel: Kernel, algorithm: str) -> bool:
    if algorithm == "auto":
        return True
    return kernel.algorithm == algorithm or kernel.algorithm.startswith(algorithm + "-")


def _check_refused(
    config: Any, kernels: list[Kernel], refused: dict[str, str], spec: ConvSpec
) -> None:
    """Raises:
    UnsupportedError: a config that only refused kernels take; the message says why they are.
    """
    if any(isinstance(config, kernel.config) for kernel in kernels):
        return
    theirs = [k.name for k in KERNELS if k.name in refused and isinstance(config, k.config)]
    if theirs:
        why = "; ".join(dict.fromkeys(refused[name] for name in theirs))
        raise UnsupportedError(f"config {config!r} of {theirs[0]} on {spec.key()}: {why}")


def _explicit(
    kernels: list[Kernel], config: Any, spec: ConvSpec, hardware: Hardware, limits: Limits
) -> Choice:
    for kernel in kernels:
        if isinstance(config, kernel.config):
            if reason := kernel.illegal(config, spec, hardware):
                raise UnsupportedError(f"{kernel.name} with {config}: {reason}")
            if not allows(limits, kernel, config, spec):
                raise UnsupportedError(
                    f"{kernel.name} with {config}: {kernel.workspace(config, spec)} bytes of "
                    f"workspace; {limits.workspace} are allowed"
                )
            return Choice(kernel, config, "explicit", "given by the caller")
    names = ", ".join(f"{k.config.__name__} ({k.name})" for k in kernels)
    raise UnsupportedError(f"config {config!r}: a config of these kernels is needed: {names}")


def _logged(
    kernels: list[Kernel],
    spec: ConvSpec,
    epilogue: Epilogue,
    hardware: Hardware,
    rows: Sequence[logs.Row],
    gpu_name: str | None,
    limits: Limits,
) -> Choice | None:
    """From the tables: this convolution, else the nearest batch or epilogue of the same layer.

    An architecture stands for all GPUs of its kind: without a `gpu_name` (the compiler has no
    GPU) the fastest row of any of them is taken. "cpu" does not: vectors differ.
    """
    by_name = {k.name: k for k in kernels}
    if isinstance(hardware, Cpu):
        rows, gpu_name = [r for r in rows if r.gpu == hardware.cpu], hardware.cpu
    maths = {name: kernel.math_of(spec) for name, kernel in by_name.items()}
    rows = [r for r in rows if r.arch == hardware.arch and maths.get(r.kernel) == r.math]
    may = precision.allowed(limits.math, spec.dtype)
    for row in logs.lookup(rows, spec, epilogue, gpu_name, may):
        if (config := _usable(by_name[row.kernel], row, spec, hardware, limits)) is not None:
            moved = "" if row.origin == "measured" else ", measured with another epilogue"
            reason = f"{row.us:.1f} us on {row.gpu} ({row.file}){moved}"
            return Choice(by_name[row.kernel], config, "log", reason)
    for row in logs.lookup_nearest(rows, spec, epilogue, gpu_name, may):
        if (config := _usable(by_name[row.kernel], row, spec, hardware, limits)) is not None:
            reason = (
                f"best at batch {logs.spec_of(row.spec).n}, epilogue {row.epilogue}, "
                f"on {row.gpu} ({row.file})"
            )
            return Choice(by_name[row.kernel], config, "log-nearest", reason)
    return None


def _usable(
    kernel: Kernel, row: logs.Row, spec: ConvSpec, hardware: Hardware, limits: Limits
) -> Any | None:
    """The row's config, if it still exists and is legal here (`logs check` names the others)."""
    try:
        config = kernel.make_config(row.config)
    except UnsupportedError:
        return None
    if kernel.illegal(config, spec, hardware) is not None:
        return None
    return config if allows(limits, kernel, config, spec) else None


def _default(
    kernels: list[Kernel],
    refused: dict[str, str],
    spec: ConvSpec,
    hardware: Hardware,
    limits: Limits,
) -> Choice:
    """Each kernel's first config that is allowed; of these the fastest by estimate.

    A kernel without an estimate is taken if it comes first: it is there for such convolutions.
    """
    looked = _looked_at(tuple(kernels), spec, hardware, limits)
    reasons = refused | looked.reasons
    if not looked.configs:
        why = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
        raise UnsupportedError(f"nothing that is allowed computes {spec.key()}: {why}")
    kernel = next(k for k in kernels if k in looked.configs or k in looked.passed)
    if kernel in looked.times or kernel in looked.passed:
        kernel = min(looked.times, key=lambda k: (looked.times[k], kernels.index(k)))
    source = "default" if kernel.schedule else "fallback"
    reason = _why(kernel, hardware, looked, reasons)
    return Choice(kernel, looked.configs[kernel], source, reason)


@dataclass
class _Looked:
    """What was found of the kernels of one convolution."""

    configs: dict[Kernel, Any] = field(default_factory=dict)  # the first that is allowed
    times: dict[Kernel, float] = field(default_factory=dict)  # of it, seconds by estimate
    passed: dict[Kernel, float] = field(default_factory=dict)  # takes this at least: too slow
    reasons: dict[str, str] = field(default_factory=dict)  # kernel name -> why not


@lru_cache(maxsize=4096)  # networks repeat their convolutions, in each layout that is considered
def _looked_at(
    kernels: tuple[Kernel, ...], spec: ConvSpec, hardware: Hardware, limits: Limits
) -> _Looked:
    """Searches kernels, the ones that may be fastest first, where they may still win."""
    looked = _Looked()
    least = {k: k.least(spec, hardware) if k.least else 0.0 for k in kernels}
    for kernel in sorted(kernels, key=lambda k: least[k]):
        if least[kernel] > min(looked.times.values(), default=inf):
            looked.passed[kernel] = least[kernel]
        elif why := kernel.not_worth(spec, hardware):
            looked.reasons[kernel.name] = why
        else:
            _search(looked, kernel, spec, hardware, limits)
    if not looked.configs:  # worth it or not
        for kernel in kernels:
            _search(looked, kernel, spec, hardware, limits)
    return looked


def _search(
    looked: _Looked, kernel: Kernel, spec: ConvSpec, hardware: Hardware, limits: Limits
) -> None:
    """Adds a kernel's first config that is allowed, and its estimate."""
    allowed = (c for c in kernel.configs(spec, hardware) if allows(limits, kernel, c, spec))
    if (config := next(allowed, None)) is None:
        looked.reasons[kernel.name] = f"every config needs more workspace than {limits.workspace}"
        return
    looked.reasons.pop(kernel.name, None)
    looked.configs[kernel] = config
    if kernel.seconds:
        looked.times[kernel] = kernel.seconds(config, spec, hardware)


def _why(kernel: Kernel, hardware: Hardware, looked: _Looked, reasons: dict[str, str]) -> str:
    if kernel.schedule is None:
        parts = ["scheduled by TVM's dlight"]
    else:
        parts = [f"default config for {hardware.arch}"]
    times = {k: f"estimated {t * 1e6:.1f} us" for k, t in looked.times.items()}
    if kernel in times:
        parts[0] += f", {times.pop(kernel)}"
    times |= {k: f"estimated {t * 1e6:.1f} us or more" for k, t in looked.passed.items()}
    parts += [f"{other.name}: {text}" for other, text in times.items()]
    return "; ".join(parts + [f"{name}: {why}" for name, why in reasons.items()])
