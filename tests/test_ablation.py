"""benchmarks/ablation.py without a GPU: its variants are legal, and the baseline's kernel right."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
import tvm
from convs import expected, random_arrays
from cuda_kernels import run
from serial import serialise

from tvm_winograd import ConvSpec
from tvm_winograd.truth import reference

PATH = Path(__file__).parent.parent / "benchmarks" / "ablation.py"


@pytest.fixture(scope="module")
def ablation():
    sys.path.insert(0, str(PATH.parent))  # as for a script
    found = importlib.util.spec_from_file_location("ablation", PATH)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules["ablation"] = module  # its dataclasses look themselves up
    found.loader.exec_module(module)
    yield module
    del sys.modules["ablation"]
    sys.path.remove(str(PATH.parent))


def test_every_variant_is_legal_and_differs(ablation) -> None:
    specs = [ConvSpec(128, c, size, size, c) for c, size in ((64, 56), (128, 28), (512, 7))]
    tasks = ablation.tasks_for(specs, "", "sm_90", "folder")
    assert [task.refused for task in tasks] == [None] * len(tasks)
    assert len({t.variant.name for t in tasks}) == len(ablation.VARIANTS) > 16
    of_one = [t for t in tasks if t.spec.c == 64 and t.variant.epilogue == ablation.NONE]
    assert len({(t.config, t.spec.layout) for t in of_one}) == len(of_one)
    assert len({t.library for t in tasks}) == len(tasks)


def test_configs_of_f4_each_once(ablation) -> None:
    specs = [ConvSpec(n, c, size, size, c) for n in (1, 128) for c, size in ((64, 56), (512, 7))]
    variants = ablation.variants_of_f4(specs, "sm_90")
    assert variants[0].name == "default"
    assert len({v.name for v in variants}) == len({v.config for v in variants}) == len(variants) > 9
    tasks = ablation.tasks_for(specs[:1], "", "sm_90", "folder", variants)
    assert {t.kernel.name for t in tasks} == {"winograd-f4-fused"}
    assert tasks[0].refused is None


def test_other_gpus_say_what_they_cannot_do(ablation) -> None:
    spec = ConvSpec(128, 64, 56, 56, 64)
    for arch in ("sm_75", "sm_86"):
        reasons = [t.refused for t in ablation.tasks_for([spec], "", arch, "folder") if t.refused]
        assert reasons and all("shared memory" in r or "registers" in r for r in reasons)


def test_separate_epilogue_is_right(ablation) -> None:
    spec = ConvSpec(n=1, c=2, h=32, w=32, k=2)  # 4 elements for each of two blocks' threads
    arrays = random_arrays(spec, ablation.FULL)
    y = reference.conv2d(spec, *arrays[:2]).astype(np.float32)
    mod = serialise(tvm.IRModule({"main": ablation._finish(spec, ablation.FULL)}))
    got = run(mod, [y, *arrays[2:]], spec.output_shape, "float32")
    assert reference.relative_error(got, expected(spec, ablation.FULL, arrays)) < 1e-6


def test_table_has_a_line_a_variant(ablation) -> None:
    specs = [ConvSpec(1, c, size, size, c) for c, size in ((64, 56), (128, 28))]
    tasks = ablation.tasks_for(specs, "opencnn", "sm_90", "folder")
    built = [ablation.Built(200, 8) for _ in tasks]
    built[0] = ablation.Built(reason="too large")
    cells = [ablation.resources_cell(*both) for both in zip(tasks, built, strict=True)]
    head, first, *rest = ablation.table(tasks, cells).splitlines()
    assert head.split() == ["64,", "56x56", "128,", "28x28"]
    assert first.split()[:2] == ["default", "illegal"]
    assert [line.split()[:3] for line in rest][1] == ["opencnn-sts64", "200r", "49280B"]
