"""What MetaSchedule's LocalBuilder runs in its worker processes: our build, our export.

Its own default build has no target in scope and no pass config: every candidate would fail.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from ..codegen import build
from ..gpu import gpu_for, host_cpu

_ATTRIBUTE = "tvm_winograd.codegen.build"


def prepare(mod: Any, arch: str, pass_config: dict[str, Any]) -> Any:
    """`mod` with a note of how to build it."""
    return mod.with_attr(_ATTRIBUTE, json.dumps({"arch": arch, "pass_config": pass_config}))


def build_module(mod: Any, target: Any, params: Any) -> Any:
    """LocalBuilder's f_build."""
    how = json.loads(str(mod.attrs[_ATTRIBUTE]))
    hardware = host_cpu() if how["arch"] == "cpu" else gpu_for(how["arch"])
    mod = mod.without_attr(_ATTRIBUTE)
    return build.build(mod, hardware, pipeline="tir", pass_config=how["pass_config"])


def export(folder: str, executable: Any) -> str:
    """LocalBuilder's f_export, behind a `functools.partial` that names the folder."""
    made = tempfile.mkdtemp(dir=folder)
    return str(build.export(executable, Path(made, "candidate.so")))
