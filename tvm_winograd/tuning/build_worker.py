"""What a process of `measure.builds` does for the tuner: our build and export of one candidate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..codegen import build
from ..gpu import gpu_for, host_cpu

LIBRARY = "candidate.so"


def save_json(mod: Any) -> str:
    """Writes an IRModule as text that any process can load."""
    import tvm

    return str(tvm.ir.save_json(mod))


@dataclass(frozen=True)
class CandidateBuild:
    """Compiles a scheduled program into the library LIBRARY."""

    mod: str  # by `save_json`
    arch: str
    number: int  # tells candidates of equal programs apart, which differ in their weights
    pass_config: Mapping[str, Any] = field(hash=False)

    def __call__(self, folder: Path) -> None:
        import tvm

        hardware = host_cpu() if self.arch == "cpu" else gpu_for(self.arch)
        mod = tvm.ir.load_json(self.mod)
        built = build.build(mod, hardware, pipeline="tir", pass_config=dict(self.pass_config))
        build.export(built, folder / LIBRARY)
