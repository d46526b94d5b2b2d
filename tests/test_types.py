"""mypy sees the border between the selector and the kernels: planted mistakes are reported."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent

# Each line that ends in "# wrong: CODE" is a mistake that mypy must report; no other line is one.
PLANTED = """
from dataclasses import replace

from tvm_winograd.gpu import gpu_for
from tvm_winograd.schedules import gemm, on_cpu, winograd_fused
from tvm_winograd.schedules.on_cpu import direct
from tvm_winograd.shapes import ConvSpec

gpu, spec = gpu_for("sm_90"), ConvSpec(1, 64, 56, 56, 64)
kernel = winograd_fused.KERNEL
config = kernel.configs(spec, gpu)[0]
kernel.illegal(config, spec, gpu)
print(config.bk, config.shared_bytes, kernel.shared_bytes(config, spec))
kernel.no_such_field(1)  # wrong: attr-defined
print(config.no_such_knob)  # wrong: attr-defined
print(direct.KERNEL.make_config({}).no_such_knob)  # wrong: attr-defined
gemm.KERNEL.illegal(config, spec, gpu)  # wrong: arg-type
replace(config, weights="async")
replace(config, weights="magic")  # wrong: arg-type
"""


def test_mypy_reports_what_does_not_exist(tmp_path: Path) -> None:
    planted = tmp_path / "planted.py"
    planted.write_text(PLANTED)
    command = [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", str(planted)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    errors = re.findall(r"planted\.py:(\d+): error: .*\[([\w-]+)\]", done.stdout)
    lines = [line.partition("# wrong: ")[2] for line in PLANTED.splitlines()]
    wrong = [(number, code) for number, code in enumerate(lines, 1) if code]
    assert [(int(line), code) for line, code in errors] == wrong, done.stdout + done.stderr
