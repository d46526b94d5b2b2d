"""With which arithmetic products are computed: nobody gets a lower one unasked, by any door."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, replace

import pytest
from tiny_network import tiny

import tvm_winograd
from tvm_winograd import ConvSpec, Epilogue, TvmWinogradError, conv2d, precision
from tvm_winograd.check.verify import verify
from tvm_winograd.choose import select
from tvm_winograd.choose.chooser import make_chooser
from tvm_winograd.choose.options import Wishes
from tvm_winograd.choose.select import Limits, candidates, choose
from tvm_winograd.cli.options import add_options, given
from tvm_winograd.codegen.artifact import Artifact
from tvm_winograd.gpu import GPUS, gpu_for, host_cpu
from tvm_winograd.schedules import KERNELS
from tvm_winograd.schedules.gemm import kernel as gemm
from tvm_winograd.shapes import DTYPES
from tvm_winograd.tables import lookup as logs
from tvm_winograd.tables import store
from tvm_winograd.truth.tolerances import TOLERANCES, network_ratio, tolerance
from tvm_winograd.tuning.spaces import space_of
from tvm_winograd.tuning.tasks import shape_tasks

H200 = gpu_for("sm_90")
SPEC = ConvSpec(1, 64, 14, 14, 64, r=1, s=1, padding=(0, 0, 0, 0))
NONE, BIAS = Epilogue(), Epilogue(bias=True)
ROW = logs.Row("NVIDIA H200", "sm_90", SPEC.key(), "none", "gemm", {}, 1.0)


@dataclass(frozen=True)
class LowConfig:
    """A config that no other kernel takes."""


OWN = {
    "config": LowConfig,
    "configs": lambda spec, hardware: [LowConfig()],
    "own_illegal": lambda config, spec, hardware: None,
    "workspace": lambda config, spec: 0,
}


def planted(monkeypatch, name: str, algorithm: str, math: str, **changes):
    """A kernel that comes first, is the fastest by estimate, and computes with `math`."""
    low = replace(
        gemm.KERNEL, name=name, algorithm=algorithm, math=math,
        seconds=lambda config, spec, hardware: 1e-12, not_worth=lambda spec, hardware: None,
        **changes,
    )  # fmt: skip
    for module in (select, tvm_winograd.schedules):
        monkeypatch.setattr(module, "KERNELS", (low, *KERNELS))
    return low


NAMES = [("gemm-tf32", "gemm"), ("gemm-tf32", "gemm-tf32"), ("fast", "gemm"), ("gemm", "gemm")]
LOWER = ["tf32", "fp16", "bf16"]


@pytest.fixture(params=NAMES, ids="/".join)
def name(request):
    return request.param


@pytest.mark.parametrize("math", LOWER)
@pytest.mark.parametrize("algorithm", ["auto", "gemm"])
def test_a_lower_arithmetic_is_not_taken_unasked(name, math, algorithm, monkeypatch):
    low = planted(monkeypatch, *name, math)
    for limits in (Limits(), Limits(math="fma"), Limits(("gemm",)), Limits(deterministic=True)):
        choice = choose(SPEC, NONE, H200, algorithm=algorithm, limits=limits)
        assert choice.kernel is not low
        assert choice.kernel.math_of(SPEC) == "fma"
        kernels, refused = candidates(SPEC, NONE, H200, algorithm, limits)
        assert low not in kernels
        assert f"computes with {math}" in refused[low.name] or low.name == "gemm"


@pytest.mark.parametrize("row_math", ["tf32", ""])
def test_no_table_gives_it(name, row_math, monkeypatch):
    """Neither a row that says what it is, nor one of a kernel that became something else."""
    config = select.config_dict(gemm.KERNEL.configs(SPEC, H200)[0])
    low = planted(monkeypatch, *name, "tf32")
    own = replace(ROW, kernel=low.name, config=config, us=0.1, math=row_math)
    near = replace(own, spec=replace(SPEC, n=2).key())
    assert own.math == (row_math or "fma")
    for rows in ([own], [near], [own, near], [replace(own, epilogue="bias")]):
        for algorithm in ("auto", "gemm"):
            choice = choose(
                SPEC, NONE, H200, algorithm=algorithm, rows=rows, gpu_name="NVIDIA H200"
            )
            assert choice.kernel is not low
            assert row_math == "" or choice.source == "default"


def test_lookups_keep_arithmetics_apart():
    low, high = replace(ROW, math="tf32", us=0.5), replace(ROW, us=2.0)
    near = [replace(row, spec=replace(SPEC, n=2).key()) for row in (low, high)]
    assert logs.lookup([low, high], SPEC, NONE) == [high]
    assert logs.lookup_nearest(near, SPEC, NONE) == [near[1]]
    assert logs.lookup([low, high], SPEC, NONE, maths=("fma", "tf32")) == [low, high]
    assert set(store.best_rows([low, high])) == {low, high}


def test_asked_for_it_is_taken(monkeypatch):
    low = planted(monkeypatch, "gemm-tf32", "gemm", "tf32", **OWN)
    asked = Limits(math="tf32")
    assert choose(SPEC, NONE, H200, limits=asked).kernel is low
    assert choose(SPEC, NONE, H200, algorithm="gemm", limits=asked).kernel is low
    row = replace(ROW, kernel="gemm-tf32", math="tf32", config={})
    assert logs.lookup([row], SPEC, NONE, maths=precision.allowed("tf32", "float32")) == [row]


@pytest.mark.parametrize("algorithm", ["auto", "gemm"])
def test_an_explicit_config_of_it_is_an_error_that_says_so(algorithm, monkeypatch):
    low = planted(monkeypatch, "gemm-tf32", "gemm", "tf32", **OWN)
    config = LowConfig()
    with pytest.raises(TvmWinogradError, match=r"gemm-tf32 .*computes with tf32; math float32 al"):
        choose(SPEC, NONE, H200, algorithm=algorithm, config=config)
    asked = choose(SPEC, NONE, H200, config=config, limits=Limits(math="tf32"))
    assert asked.kernel is low and asked.source == "explicit"


def test_wishes_of_a_network_do_not_bring_it(monkeypatch):
    low = planted(monkeypatch, "gemm-tf32", "gemm", "tf32", **OWN)
    config = LowConfig()
    for wishes in (Wishes(), Wishes(algorithm="gemm"), Wishes(layers={"conv": "gemm"})):
        assert make_chooser(H200, wishes)("conv", SPEC, NONE).kernel is not low
    with pytest.raises(TvmWinogradError, match="computes with tf32"):
        make_chooser(H200, Wishes(configs={"conv": config}))("conv", SPEC, NONE)
    asked = Wishes(limits=Limits(math="tf32"))
    assert make_chooser(H200, asked)("conv", SPEC, NONE).kernel is low


def test_a_tuner_does_not_try_it(monkeypatch):
    planted(monkeypatch, "gemm-tf32", "gemm", "tf32")
    (task,) = shape_tasks([SPEC.key()])
    found = {c.kernel.name for c in space_of(task.spec, task.epilogue, host_cpu()).candidates}
    assert found
    kernels, _ = candidates(task.spec, task.epilogue, H200)
    assert "gemm-tf32" not in {kernel.name for kernel in kernels}


def test_float32_accuracy_needs_no_asking_and_fma_forbids_it(monkeypatch):
    low = planted(monkeypatch, "gemm-split", "gemm", "fp16x3")
    assert choose(SPEC, NONE, H200).kernel is low
    assert choose(SPEC, NONE, H200, limits=Limits(math="tf32")).kernel is low
    assert choose(SPEC, NONE, H200, limits=Limits(math="fma")).kernel is not low
    assert choose(SPEC, NONE, H200, limits=Limits(max_error=6e-7)).kernel is low


def test_nor_does_an_architecture_without_the_instruction(monkeypatch):
    planted(monkeypatch, "gemm-tf32", "gemm", "tf32")
    _, refused = candidates(SPEC, NONE, gpu_for("sm_75"), limits=Limits(math="tf32"))
    assert refused["gemm-tf32"].startswith("sm_75 has no tf32: it has fma, int8")


def test_the_storage_s_own_arithmetic_is_always_allowed():
    for wish in precision.WISHES:
        assert "fp16" in precision.allowed(wish, "float16")
        assert "bf16" not in precision.allowed(wish, "float16")
        assert precision.allowed(wish, "int8") == ("int8",)


@pytest.mark.parametrize("wish", ["fp16x3", "TF32", "", None])
def test_another_wish_is_refused(wish):
    with pytest.raises(TvmWinogradError, match="there are float32, fma, tf32"):
        Limits(math=wish)
    with pytest.raises(TvmWinogradError, match="there are float32, fma, tf32"):
        conv2d(SPEC, math=wish)


def test_the_table_covers_every_architecture_and_kernel():
    assert set(precision.ARCHITECTURES) == {"cpu", *GPUS}
    for kernel in KERNELS:
        arch = "cpu" if kernel.target == "llvm" else "sm_75"
        assert kernel.math in precision.NAMES
        assert precision.missing(kernel.math, arch) is None
        assert kernel.math_of(replace(SPEC, dtype="int8")) == "int8"
    assert all(math in precision.NAMES for _, _, math in TOLERANCES)
    assert all(set(maths) <= set(precision.NAMES) for maths in precision.WISHES.values())


def test_error_limits_by_arithmetic():
    assert tolerance(SPEC, "gemm", "fp16x3") == 6e-7 < tolerance(SPEC, "gemm")
    assert tolerance(SPEC, "gemm", "tf32") > 100 * tolerance(SPEC, "gemm", "fma")
    for dtype in DTYPES:
        assert tolerance(replace(SPEC, dtype=dtype), "gemm") >= 0
    with pytest.raises(TvmWinogradError, match="no error limit"):
        tolerance(SPEC, "winograd-f4", "tf32")
    assert network_ratio([(SPEC, "gemm", "fp16x3"), (SPEC, "gemm")]) == network_ratio([])
    assert network_ratio([(SPEC, "gemm", "tf32")]) > 100


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_table_without_the_column_and_one_with_it(dtype, tmp_path):
    spec = replace(SPEC, dtype=dtype)
    header = "gpu,arch,spec,epilogue,algorithm,kernel,config,us"
    old = tmp_path / "old.csv"
    old.write_text(f"{header}\nG,sm_90,{spec.key()},none,gemm,gemm,{{}},1.5\n")
    rows, complaints = logs.read_table(old)
    assert not complaints and [row.math for row in rows] == ["int8" if dtype == "int8" else "fma"]
    new = tmp_path / "new.csv"
    new.write_text(store.table_text([replace(rows[0], math="fp16x3")]))
    assert [row.math for row in logs.read_table(new)[0]] == ["fp16x3"]
    assert logs.lookup(rows, spec, NONE) == rows


@pytest.mark.parametrize("wish", precision.WISHES)
def test_the_command_line(wish):
    parser = argparse.ArgumentParser()
    add_options(parser, Wishes)
    assert given(parser.parse_args(["--math", wish]), Wishes).limits.math == wish
    assert given(parser.parse_args([]), Wishes).limits.math == "float32"
    assert "there is no kernel yet" in " ".join(parser.format_help().split())


def test_manifests_say_it_and_older_ones_need_not(tmp_path):
    model = tiny()
    artifact = tvm_winograd.compile(model, math="fma", output=tmp_path / "a")
    (module,) = artifact.manifest["modules"]
    assert [layer["math"] for layer in module["layers"]] == ["fma"] * len(module["layers"])
    file = artifact.path / "manifest.json"
    manifest = json.loads(file.read_text())
    for layer in manifest["modules"][0]["layers"]:
        del layer["math"]
    file.write_text(json.dumps(manifest))
    report = verify(Artifact(artifact.path), model)
    assert report.ok, report
    with pytest.raises(TvmWinogradError, match="there are float32, fma, tf32"):
        tvm_winograd.compile(model, math="bf16", output=tmp_path / "b")
