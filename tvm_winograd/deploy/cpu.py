"""Whether this CPU has what a module's code uses; read from Linux, without a compiler."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..errors import ArtifactError

_CPUINFO = Path("/proc/cpuinfo")
# LLVM's name of a feature that a kernel's code may use -> Linux's; the same where not named
_NAMES = {
    "sse3": "pni", "sse4.1": "sse4_1", "sse4.2": "sse4_2", "bmi": "bmi1", "lzcnt": "abm",
    "avxvnni": "avx_vnni", "avx512vnni": "avx512_vnni", "avx512vbmi2": "avx512_vbmi2",
    "avx512bitalg": "avx512_bitalg", "avx512vpopcntdq": "avx512_vpopcntdq",
    "avx512bf16": "avx512_bf16", "avx512fp16": "avx512_fp16", "amx-tile": "amx_tile",
    "amx-int8": "amx_int8", "amx-bf16": "amx_bf16",
}  # fmt: skip
_SAME = (
    "ssse3 popcnt avx avx2 fma f16c bmi2 movbe avx512f avx512bw avx512cd avx512dq avx512vl "
    "avx512ifma avx512vbmi gfni vaes vpclmulqdq"
)
CHECKED = {**_NAMES, **{name: name for name in _SAME.split()}}


@lru_cache(maxsize=1)
def features() -> frozenset[str] | None:
    """The features of CHECKED, by LLVM's names, that this CPU has; None if that cannot be read."""
    try:
        text = _CPUINFO.read_text("utf-8", errors="replace")
    except OSError:
        return None
    found = re.search(r"^flags\s*:(.*)$", text, re.MULTILINE)
    if found is None:
        return None
    flags = set(found[1].split())
    return frozenset(name for name, flag in CHECKED.items() if flag in flags)


def needed(all_features: Sequence[str]) -> list[str]:
    """Those of LLVM's features of a CPU that are checked."""
    return sorted(set(all_features) & set(CHECKED))


def choose(modules: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The modules for this CPU, one for each batch: those that use the most of its features.

    Modules that do not say what they need, of older versions, are taken to fit.

    Raises:
        ArtifactError: none fits.
    """
    families: dict[str, list[Mapping[str, Any]]] = {}
    for module in modules:
        families.setdefault(module["arch"], []).append(module)
    fitting = [f for f in families.values() if not lacking(f[0])]
    if not fitting:
        lacks = "; ".join(
            f"{f[0]['name']} (for {_device(f[0]).get('cpu')}) needs {', '.join(lacking(f[0]))}"
            for f in families.values()
        )
        raise ArtifactError(
            f"no module of this artifact runs on this CPU: {lacks}, which it lacks; compile the "
            "model here, or with --cpu x86-64-v2, -v3 or -v4"
        )
    return max(fitting, key=lambda family: len(_device(family[0]).get("features") or ()))


def lacking(module: Mapping[str, Any]) -> list[str]:
    """What a module needs and this CPU has not: features, or the machine's kind."""
    device = _device(module)
    machine = device.get("machine")
    if machine is not None and machine != platform.machine():
        return [f"a {machine} CPU"]
    have = features()
    wanted = device.get("features") or []
    return [] if have is None else sorted(set(wanted) - have)


def _device(module: Mapping[str, Any]) -> Mapping[str, Any]:
    device = module.get("device")
    return device if isinstance(device, dict) else {}
