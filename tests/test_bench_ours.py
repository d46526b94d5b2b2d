"""Which kernels and configs of ours are measured, under which names."""

from __future__ import annotations

from tvm_winograd.bench.conv.ours import Ours
from tvm_winograd.bench.conv.provider import Bench
from tvm_winograd.gpu import gpu_for
from tvm_winograd.schedules.base.kernel import config_dict
from tvm_winograd.schedules.winograd_fused import kernel as winograd_fused
from tvm_winograd.schedules.winograd_fused.named import NAMED
from tvm_winograd.shapes import ConvSpec, Epilogue
from tvm_winograd.tables.lookup import Row

SPEC, GPU = ConvSpec(n=32, c=128, h=28, w=28, k=128), gpu_for("sm_90")


def chosen(rows=()):
    provider = Ours(Bench(None, GPU, "NVIDIA H200", rows))  # type: ignore[arg-type]
    return {
        name: (layout, choice())
        for name, (layout, choice) in provider.choices(SPEC, Epilogue()).items()
    }


def test_best_follows_the_tables_and_default_does_not():
    config = winograd_fused.KERNEL.configs(SPEC, GPU)[-1]
    row = Row(
        "NVIDIA H200", "sm_90", SPEC.key(), "none", winograd_fused.KERNEL.name,
        config_dict(config), 12.0, "winograd-f2", 3e-7,
    )  # fmt: skip
    found = chosen([row])
    assert found["best"][1].source == "log" and found["best"][1].config == config
    assert found["winograd-f2"][1].config == config
    assert found["default"][1].source == found["winograd-f4"][1].source == "default"
    assert found["nhwc"][1].kernel.math == "fp16x3"
    assert found["winograd-f4"][1].algorithm == "winograd-f4"
    assert chosen()["best"][1].source == "default"


def test_layouts():
    own = {"best", "default", "winograd-f2", "winograd-f4"}
    found = chosen()
    layouts = dict.fromkeys(own, "NCHW") | {"nhwc": "NHWC"}
    assert all(layout == layouts.get(n, "CHWN") for n, (layout, _) in found.items())
    assert set(found) == {*own, "nhwc", *NAMED} and "opencnn" in found
    assert found["opencnn"][1].config == NAMED["opencnn"]
