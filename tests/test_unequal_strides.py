"""Strides and dilations that differ between height and width, in every kernel that takes them."""

from __future__ import annotations

from dataclasses import replace

import cpu_kernels
import cuda_kernels
import numpy as np
import pytest
import torch
from convs import FULL, error_of, expected, random_arrays
from cuda_emulator import emulate
from cuda_kernels import SM90

import tvm_winograd
from tvm_winograd import ConvSpec, Epilogue, TvmWinogradError, conv2d
from tvm_winograd.check.verify import verify
from tvm_winograd.choose.select import choose
from tvm_winograd.frontend import load_model
from tvm_winograd.gpu import host_cpu
from tvm_winograd.ir.conv_spec import conv2d_spec
from tvm_winograd.schedules import KERNELS
from tvm_winograd.truth import peers, reference
from tvm_winograd.truth.tolerances import tolerance

STRIDED = ConvSpec(2, 8, 11, 13, 12, stride=(2, 1), padding=(1, 0, 2, 1))
DILATED = replace(STRIDED, stride=1, dilation=(1, 2))
BOTH = ConvSpec(1, 8, 17, 14, 12, r=3, s=2, stride=(1, 3), dilation=(3, 1))
SPECS = {"stride 2.1": STRIDED, "dilation 1.2": DILATED, "both": BOTH}


@pytest.mark.parametrize(
    ("spec", "part"),
    [
        (STRIDED, "_st2.1_p1.0.2.1_d1_"),
        (DILATED, "_st1_p1.0.2.1_d1.2_"),
        (replace(STRIDED, stride=(2, 2), dilation=[1, 1]), "_st2_p1.0.2.1_d1_"),
        (replace(STRIDED, stride=(np.int64(1), 3)), "_st1.3_"),
    ],
)
def test_keys(spec, part):
    assert part in spec.key()
    assert ConvSpec.from_key(spec.key()) == spec
    assert hash(ConvSpec.from_key(spec.key())) == hash(spec)


def test_equal_ones_are_one_integer():
    assert ConvSpec(1, 1, 9, 9, 1, stride=(2, 2)) == ConvSpec(1, 1, 9, 9, 1, stride=2)
    assert ConvSpec(1, 1, 9, 9, 1, stride=(2, 2)).stride == 2
    assert STRIDED.strides == (2, 1) and DILATED.dilations == (1, 2)
    assert (STRIDED.oh, STRIDED.ow) == (6, 12)


@pytest.mark.parametrize("bad", [(0, 1), (1,), (1, 2, 3), (1, 1.5), (1, -1), "12", (True, 1), None])
@pytest.mark.parametrize("name", ["stride", "dilation"])
def test_impossible_values(name, bad):
    with pytest.raises(TvmWinogradError, match=name):
        ConvSpec(1, 1, 9, 9, 1, **{name: bad})


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_reference_and_peer(spec):
    """Ours by definition, torch's in float32 and float64."""
    x, w = random_arrays(spec, Epilogue())
    top, left, bottom, right = spec.padding
    padded = torch.nn.functional.pad(torch.from_numpy(x).double(), (left, right, top, bottom))
    want = torch.nn.functional.conv2d(
        padded, torch.from_numpy(w).double(), stride=spec.strides, dilation=spec.dilations
    )
    assert reference.relative_error(reference.conv2d(spec, x, w), want.numpy()) < 1e-14
    assert reference.relative_error(peers.torch_conv(spec, x, w), want.numpy()) < 1e-6


def cases():
    for label, spec in SPECS.items():
        for kernel in KERNELS:
            if "winograd" in kernel.algorithm or kernel.schedule is None or kernel.math != "fma":
                continue
            grouped = replace(spec, groups=4 if kernel.name == "depthwise-cuda" else 1)
            for layout in ("NCHW", "NHWC"):
                name = f"{label}-{kernel.target}-{kernel.name}-{layout}"
                yield pytest.param(kernel, replace(grouped, layout=layout), id=name)


@pytest.mark.parametrize(("kernel", "spec"), list(cases()))
def test_every_kernel_but_winograd(kernel, spec):
    hardware = host_cpu() if kernel.target == "llvm" else SM90
    assert kernel.supports(spec, FULL, hardware) is None
    for config in kernel.configs(spec, hardware)[:2]:
        if kernel.target == "llvm":
            cpu_kernels.check(kernel, spec, FULL, config, hardware)
        else:
            cuda_kernels.check(kernel, spec, FULL, config)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_cuda_text(spec):
    kernel = next(k for k in KERNELS if k.name == "implicit-gemm")
    config = kernel.configs(spec, SM90)[0]
    assert emulate(kernel, spec, FULL, config) <= tolerance(spec, kernel.algorithm)


@pytest.mark.parametrize("hardware", [host_cpu(), SM90], ids=["llvm", "cuda"])
@pytest.mark.parametrize("spec", [STRIDED, DILATED])
def test_winograd_refuses_and_another_takes_it(spec, hardware):
    with pytest.raises(TvmWinogradError, match=r"(stride|dilation) 1, got \((2, 1|1, 2)\)"):
        choose(spec, FULL, hardware, algorithm="winograd")
    assert not choose(spec, FULL, hardware).algorithm.startswith("winograd")


@pytest.mark.parametrize("algorithm", ["auto", "direct", "im2win"])
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_conv2d(spec, algorithm):
    compiled = conv2d(spec, algorithm=algorithm, bias=True, activation="silu")
    assert error_of(compiled) <= tolerance(spec, compiled.choice.algorithm)
    arrays = random_arrays(spec, compiled.epilogue)
    want = expected(spec, compiled.epilogue, arrays)
    assert reference.relative_error(compiled(*arrays), want) < 1e-6


class Recogniser(torch.nn.Module):
    """As text recognition has them: height shrinks, width stays; one row at the end."""

    def __init__(self):
        super().__init__()
        self.one = torch.nn.Conv2d(3, 8, 3, stride=(2, 1), padding=1)
        self.two = torch.nn.Conv2d(8, 8, 3, padding=(1, 2), dilation=(1, 2), groups=8)
        self.three = torch.nn.Conv2d(8, 6, (4, 1), stride=(4, 1))

    def forward(self, x):
        return self.three(torch.relu(self.two(torch.relu(self.one(x))))).squeeze(2)


@pytest.mark.parametrize("how", ["pt2", "onnx"])
def test_a_network(how, tmp_path):
    torch.manual_seed(0)
    made, x, path = Recogniser().eval(), torch.randn(1, 3, 8, 21), tmp_path / f"a.{how}"
    if how == "pt2":
        torch.export.save(torch.export.export(made, (x,)), path)
    else:
        torch.onnx.export(made, (x,), path, dynamo=False)
    artifact = tvm_winograd.compile(str(path), output=tmp_path / "a")
    keys = [layer["spec"] for layer in artifact.manifest["modules"][0]["layers"]]
    assert ["_st2.1_" in key for key in keys] == [True, False, False]
    assert ["_d1.2_" in key for key in keys] == [False, True, False]
    with torch.no_grad():
        want = made.double()(x.double()).numpy()
    assert reference.relative_error(artifact.load().run(x.numpy()), want) < 1e-6
    report = verify(artifact, load_model(str(path)))
    assert report.ok, report
    compiled = tvm_winograd.compile(str(path), target="cuda", ptx=False, output=tmp_path / "b")
    assert len(compiled.manifest["modules"][0]["layers"]) == 3


@pytest.mark.parametrize(
    ("shape", "filters", "options", "want"),
    [
        # one output row: its stride is any
        ((1, 4, 3, 9), (4, 4, 3, 3), {"strides": (7, 1)}, {"stride": 1}),
        ((1, 4, 3, 9), (4, 4, 3, 3), {"strides": (1, 2)}, {"stride": 2}),
        # of two rows stride 1 would make two outputs
        ((1, 4, 4, 9), (4, 4, 3, 3), {"strides": (2, 1)}, {"stride": (2, 1)}),
        # one tap: its dilation is any
        ((1, 4, 9, 9), (4, 4, 1, 3), {"dilation": (5, 1)}, {"dilation": 1}),
        ((1, 4, 9, 9), (4, 4, 3, 1), {"dilation": (2, 3)}, {"dilation": 2}),
        ((1, 4, 9, 9), (4, 4, 3, 3), {"dilation": (2, 1)}, {"dilation": (2, 1)}),
    ],
)
def test_axes_where_they_change_nothing(shape, filters, options, want):
    from tvm import relax

    x = relax.Var("x", relax.TensorType(shape, "float32"))
    w = relax.Var("w", relax.TensorType(filters, "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, w]):
        out = builder.emit(relax.op.nn.conv2d(x, w, **options))
        builder.emit_func_output(out)
    (binding,) = builder.get()["main"].body.blocks[0].bindings[:1]
    spec = conv2d_spec(binding.value)
    for name, value in want.items():
        assert getattr(spec, name) == value
    assert spec.output_shape == tuple(int(v) for v in binding.var.ty.shape.values)
