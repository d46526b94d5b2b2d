"""Which kernel computes a convolution, with which config, and why.

Called in one place of the compiler and by `conv2d`. First hit wins: explicit config, tuning log
(this convolution, then the nearest), the shipped default of the preferred kernel that applies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm_winograd.schedules import KERNELS
from tvm_winograd.schedules.kernel import Kernel, config_dict, mistyped

from . import logs
from .errors import UnsupportedError
from .gpu import Cpu, Hardware
from .shapes import ConvSpec, Epilogue

ALGORITHMS = (
    "auto", "winograd", "winograd-f2", "winograd-f4", "im2win", "im2col", "gemm", "direct",
)  # fmt: skip


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


def candidates(
    spec: ConvSpec, epilogue: Epilogue, hardware: Hardware, algorithm: str = "auto"
) -> tuple[list[Kernel], dict[str, str]]:
    """(kernels that apply, preferred first; kernel name -> reason why it does not).

    Raises:
        UnsupportedError: an algorithm that does not exist on this target.
    """
    asked = kernels_of(algorithm, hardware)
    reasons = {k.name: k.supports(spec, epilogue, hardware) for k in asked}
    refused = {name: why for name, why in reasons.items() if why is not None}
    return [k for k in asked if k.name not in refused], refused


def kernels_of(algorithm: str, hardware: Hardware) -> list[Kernel]:
    """All kernels of an algorithm on this target, preferred first.

    Raises:
        UnsupportedError: there is none.
    """
    if algorithm not in ALGORITHMS:
        raise UnsupportedError(f"algorithm={algorithm!r}: there are {', '.join(ALGORITHMS)}")
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
) -> Choice:
    """The kernel and config for one convolution.

    Raises:
        UnsupportedError: nothing that was asked for can compute it; the message says why.
    """
    kernels, refused = candidates(spec, epilogue, hardware, algorithm)
    if not kernels:
        why = "; ".join(sorted(set(refused.values())))
        raise UnsupportedError(f"{algorithm} cannot compute {spec.key()}: {why}")
    if config is not None:
        return _explicit(kernels, config, spec, hardware)
    if (logged := _logged(kernels, spec, epilogue, hardware, rows, gpu_name)) is not None:
        return logged
    return _default(kernels, refused, spec, hardware)


def _matches(kernel: Kernel, algorithm: str) -> bool:
    if algorithm == "auto":
        return True
    return kernel.algorithm == algorithm or kernel.algorithm.startswith(algorithm + "-")


def _explicit(kernels: list[Kernel], config: Any, spec: ConvSpec, hardware: Hardware) -> Choice:
    for kernel in kernels:
        if isinstance(config, kernel.config):
            if reason := mistyped(config) or kernel.illegal(config, spec, hardware):
                raise UnsupportedError(f"{kernel.name} with {config}: {reason}")
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
) -> Choice | None:
    """From the tables: this convolution, else the nearest batch or epilogue of the same layer.

    An architecture stands for all GPUs of its kind: without a `gpu_name` (the compiler has no
    GPU) the fastest row of any of them is taken. "cpu" does not: vectors differ.
    """
    by_name = {k.name: k for k in kernels}
    if isinstance(hardware, Cpu):
        rows, gpu_name = [r for r in rows if r.gpu == hardware.cpu], hardware.cpu
    rows = [r for r in rows if r.arch == hardware.arch and r.kernel in by_name and not r.wrong]
    for row in logs.lookup(rows, spec, epilogue, gpu_name):
        if (config := _usable(by_name[row.kernel], row, spec, hardware)) is not None:
            moved = "" if row.origin == "measured" else ", measured with another epilogue"
            reason = f"{row.us:.1f} us on {row.gpu} ({row.file}){moved}"
            return Choice(by_name[row.kernel], config, "log", reason)
    for row in logs.lookup_nearest(rows, spec, epilogue, gpu_name):
        if (config := _usable(by_name[row.kernel], row, spec, hardware)) is not None:
            reason = (
                f"best at batch {logs.spec_of(row.spec).n}, epilogue {row.epilogue}, "
                f"on {row.gpu} ({row.file})"
            )
            return Choice(by_name[row.kernel], config, "log-nearest", reason)
    return None


def _usable(kernel: Kernel, row: logs.Row, spec: ConvSpec, hardware: Hardware) -> Any | None:
    """The row's config, if it still exists and is legal here (`logs check` names the others)."""
    try:
        config = kernel.make_config(row.config)
    except UnsupportedError:
        return None
    return config if kernel.illegal(config, spec, hardware) is None else None


def _default(
    kernels: list[Kernel], refused: dict[str, str], spec: ConvSpec, hardware: Hardware
) -> Choice:
    slow = {k.name: why for k in kernels if (why := k.not_worth(spec, hardware))}
    worth = [k for k in kernels if k.name not in slow]
    kernel = (worth or kernels)[0]
    config = kernel.configs(spec, hardware)[0]
    others = "; ".join(f"{name}: {why}" for name, why in (refused | slow).items())
    if kernel.schedule is None:
        return Choice(kernel, config, "fallback", f"scheduled by TVM's dlight. {others}".strip())
    reason = f"default config for {hardware.arch}" + (f". {others}" if others else "")
    return Choice(kernel, config, "default", reason)
