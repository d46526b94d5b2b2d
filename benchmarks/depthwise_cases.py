"""What benchmarks/depthwise.py measures: layers, functions, how to compile them, torch's peers."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvm_winograd import ConvSpec, Epilogue
from tvm_winograd.choose.select import Choice
from tvm_winograd.codegen import build
from tvm_winograd.gpu import gpu_for, make_target
from tvm_winograd.passes.apply_schedules import dlight_schedule, schedule_function
from tvm_winograd.schedules import KERNELS
from tvm_winograd.schedules.base.kernel import Kernel

EPILOGUE = Epilogue(bias=True, relu=True)
OURS, DLIGHT = "depthwise-cuda", "direct-dlight"
# channels, map, stride: of MobileNetV2 (Sandler et al., 2018), each once
LAYERS = (
    (32, 112, 1), (96, 112, 2), (144, 56, 1), (144, 56, 2), (192, 28, 1),
    (192, 28, 2), (384, 14, 1), (576, 14, 1), (576, 14, 2), (960, 7, 1),
)  # fmt: skip
# name -> shapes of the inputs at batch n
FUNCTIONS: dict[str, Callable[[int], list[tuple[int, ...]]]] = {
    "max pool 3x3/2, 64, 112²": lambda n: [(n, 64, 112, 112)],
    "average pool 3x3/1, 192, 28²": lambda n: [(n, 192, 28, 28)],
    "global average, 1280, 7²": lambda n: [(n, 1280, 7, 7)],
    "global average, 2048, 7²": lambda n: [(n, 2048, 7, 7)],
    "dense 512 to 1000": lambda n: [(n, 512), (512, 1000), (1000,)],
    "dense 1280 to 1000": lambda n: [(n, 1280), (1280, 1000), (1000,)],
    "dense 2048 to 1000": lambda n: [(n, 2048), (2048, 1000), (1000,)],
}


@dataclass(frozen=True)
class Job:
    """What a worker compiles: of values that can be sent to it."""

    name: str  # a ConvSpec's key, or of FUNCTIONS
    batch: int
    arch: str
    kernel: str = ""  # of a convolution
    config: str = ""  # JSON
    dlight: bool = False  # of a function


def kernel_of(name: str) -> Kernel:
    return next(k for k in KERNELS if k.name == name)


def compile_job(job: Job, path: Path) -> tuple[Path, str]:
    """(the library, how it was scheduled); runs in a worker process."""
    gpu = gpu_for(job.arch)
    with make_target(gpu):
        if job.kernel:
            kernel, spec = kernel_of(job.kernel), ConvSpec.from_key(job.name)
            config = kernel.make_config(json.loads(job.config))
            choice = Choice(kernel, config, "explicit", "benchmark")
            func = kernel.prim_func(spec, EPILOGUE, config)
            done, how = schedule_function(func, choice, gpu)
            detail = job.config if kernel.schedule else how["schedule"]
        else:
            func = legalised(job.name, job.batch)
            if job.dlight:
                detail, done = dlight_schedule(func)
            else:
                done, how = schedule_function(func, None, gpu)
                detail = how["schedule"]
            done = done.with_attr("global_symbol", "main")
    return build.export(build.build(done, gpu, pipeline="tir"), path), detail


def legalised(name: str, batch: int) -> Any:
    """The unscheduled PrimFunc of one of FUNCTIONS."""
    import tvm
    from tvm import relax

    builder = relax.BlockBuilder()
    shapes = FUNCTIONS[name](batch)
    inputs = [relax.Var(f"x{i}", relax.TensorType(s, "float32")) for i, s in enumerate(shapes)]
    with builder.function("main", inputs):
        with builder.dataflow():
            if name.startswith("dense"):
                y = builder.emit(relax.op.matmul(*inputs[:2]))
                out = relax.op.add(y, inputs[2])
            elif name.startswith("global"):
                out = relax.op.nn.adaptive_avg_pool2d(inputs[0], (1, 1))
            elif name.startswith("max"):
                out = relax.op.nn.max_pool2d(inputs[0], (3, 3), (2, 2), (1, 1))
            else:
                out = relax.op.nn.avg_pool2d(
                    inputs[0], (3, 3), padding=(1, 1), count_include_pad=True
                )
            out = builder.emit_output(out)
        builder.emit_func_output(out)
    passes = [
        relax.transform.LegalizeOps(),
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FuseOps(),
        relax.transform.FuseTIR(),
    ]
    mod = tvm.transform.Sequential(passes)(builder.get())
    (func,) = (f for _, f in mod.functions_items() if isinstance(f, tvm.tirx.PrimFunc))
    return func


def torch_function(name: str) -> Callable[..., Any]:
    """The same in torch."""
    import torch
    from torch.nn import functional

    if name.startswith("dense"):
        return lambda x, w, b: torch.addmm(b, x, w)
    if name.startswith("global"):
        return lambda x: functional.adaptive_avg_pool2d(x, 1)
    if name.startswith("max"):
        return lambda x: functional.max_pool2d(x, 3, 2, 1)
    return lambda x: functional.avg_pool2d(x, 3, 1, 1)


def torch_conv(spec: ConvSpec) -> Callable[..., Any]:
    import torch

    def conv(x: Any, w: Any, b: Any) -> Any:
        y = torch.nn.functional.conv2d(
            x, w, b.to(x.dtype), spec.stride, spec.padding[0], groups=spec.groups
        )
        return torch.relu(y)

    return conv
