"""The stages of every kernel's schedule: named, described, printable, no effect when unseen."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tvm import s_tir
from tvm.s_tir.meta_schedule.utils import shash2hex

from tvm_winograd import ConvSpec, Epilogue
from tvm_winograd.check import inspect
from tvm_winograd.cli import main
from tvm_winograd.errors import UnsupportedError
from tvm_winograd.gpu import Cpu, Hardware, gpu_for, make_target
from tvm_winograd.schedules import KERNELS
from tvm_winograd.schedules.base.kernel import Kernel
from tvm_winograd.schedules.base.stages import stage, watched

SPEC = ConvSpec(2, 32, 14, 14, 32, padding=(1, 1, 1, 1))
DEPTHWISE = replace(SPEC, groups=32)
SM90, CPU = gpu_for("sm_90"), Cpu("generic", 128, 2)
# Tensor-core functions come with their threads: nothing is left to schedule.
SCHEDULED = [k for k in KERNELS if k.schedule is not None and k.math == "fma"]
FULL = Epilogue(bias=True, residual=True, relu=True)


def hardware_of(kernel: Kernel) -> Hardware:
    return SM90 if kernel.target == "cuda" else CPU


def scheduled(kernel: Kernel, spec: ConvSpec) -> s_tir.Schedule:
    hardware = hardware_of(kernel)
    config = kernel.configs(spec, hardware)[0]
    sch = s_tir.Schedule(kernel.prim_func(spec, FULL, config))
    with make_target(hardware):
        kernel.schedule(sch, config, hardware)
    return sch


@pytest.mark.parametrize("kernel", SCHEDULED, ids=lambda k: k.name)
def test_every_stage_is_seen(kernel: Kernel) -> None:
    spec = DEPTHWISE if kernel.name == "depthwise-cuda" else SPEC
    with watched() as seen:
        sch = scheduled(kernel, spec)
    assert len(seen) >= 3 and all(s.loops for s in seen)
    assert len({s.script for s in seen}) == len(seen)  # each of them does something
    assert seen[-1].script == sch.mod.script()  # nothing happens behind the last
    assert shash2hex(sch.mod) == shash2hex(scheduled(kernel, spec).mod)


def test_nothing_is_seen_outside() -> None:
    with watched() as seen:
        pass
    scheduled(SCHEDULED[0], SPEC)
    assert seen == []


def test_a_stage_says_its_loops_in_one_line() -> None:
    def silent(sch: object) -> None:
        """Do something."""

    def twice(sch: object) -> None:
        """Do something.

        loops: a
        loops: b
        """

    for function in (silent, twice):
        with pytest.raises(TypeError, match=r"docstring lines start with \"loops: \""):
            stage(function)


def test_show_prints_stages(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["show", "resnet18", "--layer", "layer4.1.conv2", "--what", "stages"]
    command += ["--target", "cuda", "--arch", "sm_90"]
    assert main([*command, "--json"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)
    before, *stages = entry["stages"]
    assert before["stage"] == "before" and "blockIdx" not in before["ir"]
    assert all(set(one) == {"stage", "loops", "ir"} for one in stages)
    assert "blockIdx.x" in stages[0]["ir"] and "threadIdx.x" in stages[-1]["ir"]
    assert main(command) == 0
    printed = capsys.readouterr().out
    for one in stages:
        assert f"# stage {one['stage']}\n# loops: {one['loops']}\n" in printed


def test_an_unknown_rung_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="stages, ir"):
        inspect.describe([], SM90, "nonsense")
