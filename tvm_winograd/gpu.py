"""What a kernel may use on a device: `Gpu` and `Cpu`, made from an architecture name.

No device is touched: everything is a table, so that any architecture can be compiled for
anywhere. Limits per block and SM: CUDA C++ Programming Guide, "Technical Specifications per
Compute Capability".
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from typing import Any

from .deploy.cpu import features, needed
from .errors import UnsupportedError


@dataclass(frozen=True)
class Gpu:
    """One CUDA architecture. Rates are of the largest common card of that architecture."""

    arch: str
    shared_per_block: int  # bytes a block may use (opt-in limit)
    shared_per_sm: int  # bytes
    sms: int
    l2_bytes: int
    gb_per_s: float  # device memory
    fp32_tflops: float
    registers_per_sm: int = 65536
    max_registers: int = 255  # per thread
    warp: int = 32

    kind = "cuda"

    @property
    def cc(self) -> int:
        """Compute capability times 10, e.g. 90."""
        return int(re.sub(r"\D", "", self.arch))

    @property
    def code(self) -> str:
        """The architecture that machine code is made for: sm_90a has all that sm_90 GPUs can do."""
        return f"{self.arch}a" if self.arch == "sm_90" else self.arch

    @property
    def hertz(self) -> float:
        """Clock under load; an SM's 128 lanes (64 before sm_86) do a multiply-add each a clock."""
        lanes = 64 if self.cc < 86 else 128
        return self.fp32_tflops * 1e12 / (self.sms * lanes * 2)

    @property
    def has_async_copy(self) -> bool:
        """cp.async exists from sm_80 on."""
        return self.cc >= 80


@dataclass(frozen=True)
class Cpu:
    """The CPU an `llvm` target compiles for."""

    cpu: str  # LLVM's name, e.g. "znver4"; "generic" for any of this family
    vector_bits: int
    cores: int
    features: tuple[str, ...] = ()  # LLVM's names of what its code may use
    lacks: tuple[str, ...] = ()  # of what LLVM gives `cpu`: a hypervisor may hide features

    kind = "llvm"
    arch = "cpu"

    @property
    def lanes(self) -> int:
        """float32 elements per vector register."""
        return self.vector_bits // 32


Hardware = Gpu | Cpu

_KIB = 1024
DEFAULT_ARCH = "sm_90"  # where there is no GPU, or one that we do not know
GPUS = {
    g.arch: g
    for g in (
        # arch, shared/block, shared/SM, SMs, L2, GB/s, fp32 TFLOP/s
        Gpu("sm_75", 64 * _KIB, 64 * _KIB, 40, 4 << 20, 320, 8.1),  # T4
        Gpu("sm_80", 163 * _KIB, 164 * _KIB, 108, 40 << 20, 1555, 19.5),  # A100
        Gpu("sm_86", 99 * _KIB, 100 * _KIB, 82, 6 << 20, 936, 35.6),  # RTX 3090
        Gpu("sm_87", 163 * _KIB, 164 * _KIB, 16, 4 << 20, 205, 5.3),  # Jetson AGX Orin
        Gpu("sm_89", 99 * _KIB, 100 * _KIB, 128, 72 << 20, 1008, 82.6),  # RTX 4090
        Gpu("sm_90", 227 * _KIB, 228 * _KIB, 132, 60 << 20, 4800, 66.9),  # H200
        Gpu("sm_100", 227 * _KIB, 228 * _KIB, 148, 126 << 20, 8000, 75.0),  # B200
        Gpu("sm_103", 227 * _KIB, 228 * _KIB, 148, 126 << 20, 8000, 75.0),  # B300
        Gpu("sm_110", 227 * _KIB, 228 * _KIB, 20, 32 << 20, 273, 8.1),  # Jetson AGX Thor
        Gpu("sm_120", 99 * _KIB, 100 * _KIB, 170, 96 << 20, 1792, 104.8),  # RTX 5090
        Gpu("sm_121", 99 * _KIB, 100 * _KIB, 48, 24 << 20, 273, 31.0),  # DGX Spark
    )
}

# For PTX that any GPU from sm_75 on can run: no more than the 48 KB that need no opt-in.
PORTABLE = replace(GPUS["sm_75"], shared_per_block=48 * _KIB, shared_per_sm=48 * _KIB)


def gpu_for(arch: str) -> Gpu:
    """The description of `arch` ("sm_90").

    Raises:
        UnsupportedError: an architecture we have no description of.
    """
    if not isinstance(arch, str) or arch not in GPUS:
        raise UnsupportedError(f"arch={arch!r}: supported are {', '.join(GPUS)}")
    return GPUS[arch]


def parse_archs(text: str) -> list[str]:
    """Comma-separated architectures, checked, order kept, duplicates dropped."""
    names = [a.strip() for a in str(text).split(",") if a.strip()]
    if not names:
        raise UnsupportedError(f"arch={text!r}: name at least one of {', '.join(GPUS)}")
    return [gpu_for(a).arch for a in dict.fromkeys(names)]


def host_cpu() -> Cpu:
    """The CPU of this machine: LLVM's name, without the features that the system does not show."""
    from tvm.target import codegen

    named, have = _cpu(codegen.llvm_get_system_cpu()), features()
    lacks = set() if have is None else set(needed(named.features)) - have
    return _cpu(named.cpu, tuple(sorted(lacks))) if lacks else named


def cpu_for(name: str) -> Cpu:
    """A CPU by LLVM's name: "x86-64-v3", "znver4", ...; "native" is this machine's.

    Raises:
        UnsupportedError: a name that LLVM does not know.
    """
    from tvm.target import codegen

    if name == "native":
        return host_cpu()
    known = set(map(str, codegen.llvm_get_cpu_archlist(codegen_target())))
    if name not in known:
        levels = [level for level in LEVELS if level in known]
        raise UnsupportedError(
            f"cpu={name!r}: LLVM does not know it; supported are native, "
            f"{', '.join([*levels, *sorted(known - set(levels))])}"
        )
    return _cpu(name)


LEVELS = ("x86-64-v2", "x86-64-v3", "x86-64-v4")  # generic x86 CPUs, each a superset


def _cpu(name: str, lacks: tuple[str, ...] = ()) -> Cpu:
    from tvm.target import Target, codegen

    has = sorted(map(str, codegen.llvm_get_cpu_features(Target(_llvm(name, lacks)))))
    bits = 512 if "avx512f" in has else 256 if {"avx2", "avx"} & set(has) else 128
    return Cpu(name, bits, os.cpu_count() or 1, tuple(has), lacks)


def _llvm(name: str, lacks: tuple[str, ...]) -> dict[str, Any]:
    without = {"mattr": [f"-{feature}" for feature in lacks]} if lacks else {}
    return {"kind": "llvm", "mcpu": name, **without}


def codegen_target() -> Any:
    """An llvm target of the host CPU, to ask LLVM about."""
    from tvm.target import Target, codegen

    return Target({"kind": "llvm", "mcpu": codegen.llvm_get_system_cpu()})


def make_target(hardware: Hardware) -> Any:
    """The TVM target of `hardware` (a dict-made one: "cuda -arch=..." strings are refused)."""
    from tvm.target import Target

    if isinstance(hardware, Cpu):
        return Target(_llvm(hardware.cpu, hardware.lacks) | {"num-cores": hardware.cores})
    return Target(
        {
            "kind": "cuda",
            "arch": hardware.arch,
            "max_shared_memory_per_block": hardware.shared_per_block,
            "max_threads_per_block": 1024,
            "thread_warp_size": hardware.warp,
        }
    )
