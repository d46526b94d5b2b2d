"""benchmarks/ablation.py without a GPU: its variants are legal, and the baseline's kernel right."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from convs import FULL, expected, random_arrays
from cuda_kernels import run
from serial import serialise

from tvm_winograd import ConvSpec
from tvm_winograd.errors import UnsupportedError
from tvm_winograd.truth import reference


@pytest.fixture(scope="module")
def ablation(script):
    return script("ablation")


def test_every_variant_is_legal_and_differs(ablation) -> None:
    specs = [ConvSpec(128, c, size, size, c) for c, size in ((64, 56), (128, 28), (512, 7))]
    tasks = ablation.tasks_for(specs, "", "sm_90")
    assert [task.refused for task in tasks] == [None] * len(tasks)
    assert len({t.variant.name for t in tasks}) == len(ablation.VARIANTS) > 16
    of_one = [t for t in tasks if t.spec.c == 64 and t.variant.epilogue == ablation.NONE]
    assert len({(t.config, t.spec.layout) for t in of_one}) == len(of_one)
    assert len({t.build() for t in tasks}) == len(tasks)


def test_configs_of_f4_each_once(ablation) -> None:
    specs = [ConvSpec(n, c, size, size, c) for n in (1, 128) for c, size in ((64, 56), (512, 7))]
    variants = ablation.variants_of_f4(specs, "sm_90")
    assert variants[0].name == "default"
    assert len({v.name for v in variants}) == len({v.config for v in variants}) == len(variants) > 9
    tasks = ablation.tasks_for(specs[:1], "", "sm_90", variants)
    assert {ablation.kernel_of(t.config).name for t in tasks} == {"winograd-f4-fused"}
    assert tasks[0].refused is None


def test_other_gpus_say_what_they_cannot_do(ablation) -> None:
    spec = ConvSpec(128, 64, 56, 56, 64)
    for arch in ("sm_75", "sm_86"):
        refused = [t for t in ablation.tasks_for([spec], "", arch) if t.refused]
        reasons = [t.refused for t in refused]
        assert reasons and all("shared memory" in r or "registers" in r for r in reasons)
        with pytest.raises(UnsupportedError, match=r"shared memory|registers"):
            refused[0].build()


def test_separate_epilogue_is_right(ablation) -> None:
    spec = ConvSpec(n=1, c=2, h=32, w=32, k=2)  # 4 elements for each of two blocks' threads
    arrays = random_arrays(spec, FULL)
    y = reference.conv2d(spec, *arrays[:2]).astype(np.float32)
    mod = serialise(tvm.IRModule({"main": ablation._finish(spec, FULL)}))
    got = run(mod, [y, *arrays[2:]], spec.output_shape, "float32")
    assert reference.relative_error(got, expected(spec, FULL, arrays)) < 1e-6


def test_table_has_a_line_a_variant(ablation) -> None:
    specs = [ConvSpec(1, c, size, size, c) for c, size in ((64, 56), (128, 28))]
    tasks = ablation.tasks_for(specs, "opencnn", "sm_90")
    found = [ablation.Resources(200, 8) for _ in tasks]
    found[0] = None
    cells = [ablation.resources_cell(*both) for both in zip(tasks, found, strict=True)]
    head, first, *rest = ablation.table(tasks, cells).splitlines()
    assert head.split() == ["64,", "56x56", "128,", "28x28"]
    assert first.split()[:2] == ["default", "illegal"]
    assert [line.split()[:3] for line in rest][1] == ["opencnn-sts64", "200r", "49280B"]


def test_times_stand_beside_the_default(ablation) -> None:
    specs = [ConvSpec(1, 64, 56, 56, 64)]
    default, *rest = ablation.tasks_for(specs, "opencnn", "sm_90")
    key = specs[0].key()
    us = {
        (key, "default"): 10.0,
        (key, rest[0].variant.name): 12.5,
        (key, rest[1].variant.name): None,
    }
    cells = [ablation.time_cell(us, task) for task in (default, *rest[:2])]
    assert cells == ["10.0 us  +0.0%", "12.5 us +25.0%", "illegal"]


def test_what_is_built_without_a_gpu(ablation, tmp_path) -> None:
    """Both kernels of the second-kernel variant, and what ptxas says of the first."""
    spec = ConvSpec(1, 64, 14, 14, 64)
    tasks = ablation.tasks_for([spec], "second kernel", "sm_90")
    (task,) = [task for task in tasks if task.variant.separate]
    task.build()(tmp_path)
    assert {"conv.so", "finish.so", "resources.json"} <= {p.name for p in tmp_path.iterdir()}
    assert 100 < ablation.Resources.read(tmp_path).registers < 256
