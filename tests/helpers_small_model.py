"""A tiny Relax model, lowered and scheduled by hand, and artifacts of it.

relu(x @ w + b), twice with shared shapes: enough for parameters, several kernels and a
workspace, small enough to build in a second.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tvm_winograd.codegen.artifact import Artifact, BuiltModule, Contents, write_artifact
from tvm_winograd.codegen.build import build, export
from tvm_winograd.codegen.nvrtc import compiler_version
from tvm_winograd.gpu import Cpu, Hardware, gpu_for

BATCH, WIDTH = 4, 32
# "generic" would be refused by LLVM; every x86-64 or arm64 host has at least 128-bit vectors
PLAIN_CPU = Cpu("x86-64", 128, 1)


def params(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        name: rng.standard_normal(shape, dtype="float32") / 4
        for name, shape in {
            "w0": (WIDTH, WIDTH),
            "b0": (WIDTH,),
            "w1": (WIDTH, WIDTH),
            "b1": (WIDTH,),
        }.items()
    }


def example_input(seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((BATCH, WIDTH), dtype="float32")


def reference(x: np.ndarray, weights: dict[str, np.ndarray], two: bool = False) -> object:
    w = {k: v.astype("float64") for k, v in weights.items()}
    first = np.maximum(x @ w["w0"] + w["b0"], 0)
    second = np.maximum(first @ w["w1"] + w["b1"], 0)
    return (first, second) if two else second


def small_module(hardware: Hardware, *, two_outputs: bool = False) -> object:
    """main(x, (w0, b0, w1, b1)), legalised, fused, and scheduled by dlight if for a GPU."""
    import tvm
    from tvm import relax
    from tvm.s_tir import dlight

    from tvm_winograd.gpu import make_target

    shapes = {"x": (BATCH, WIDTH), **{k: v.shape for k, v in params().items()}}
    args = {k: relax.Var(k, relax.TensorType(s, "float32")) for k, s in shapes.items()}
    builder = relax.BlockBuilder()
    with builder.function("main", list(args.values()), attrs={"num_input": 1}):
        with builder.dataflow():
            values, value = [], args["x"]
            for i in "01":
                value = builder.emit(relax.op.matmul(value, args[f"w{i}"]))
                value = builder.emit(relax.op.nn.relu(relax.op.add(value, args[f"b{i}"])))
                values.append(value)
            out = builder.emit_output(relax.Tuple(values) if two_outputs else value)
        builder.emit_func_output(out)
    passes = [
        relax.transform.BundleModelParams(),
        relax.transform.LegalizeOps(),
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FuseOps(),
        relax.transform.FuseTIR(),
    ]
    if hardware.kind == "cuda":
        passes.append(dlight.ApplyDefaultSchedule(dlight.gpu.Matmul(), dlight.gpu.Fallback()))
    with make_target(hardware):
        return tvm.transform.Sequential(passes)(builder.get())


def built(name: str = "cpu", *, seed: int = 0, two_outputs: bool = False) -> BuiltModule:
    """`name`: "cpu", an architecture, or "ptx" (of sm_75)."""
    ptx = name == "ptx"
    hardware = PLAIN_CPU if name == "cpu" else gpu_for("sm_75" if ptx else name)
    return BuiltModule(
        name=name,
        arch=hardware.arch,
        kind="llvm" if name == "cpu" else "ptx" if ptx else "cubin",
        library=library(small_module(hardware, two_outputs=two_outputs), hardware, ptx=ptx),
        params=params(seed),
        layers=[{"name": "layer0"}],
        functions=[{"name": "fused", "shared_bytes": 8192, "workspaces": []}],
        compiler=None if name == "cpu" else compiler_version("nvrtc"),
    )


def library(mod: Any, hardware: Hardware, *, ptx: bool = False) -> bytes:
    """The bytes of the shared library of a module."""
    with tempfile.TemporaryDirectory() as folder:
        executable = build(mod, hardware, ptx=ptx)
        return export(executable, Path(folder, "m.so"), ptx=ptx).read_bytes()


def write(path: Path, *modules: BuiltModule, **options: object) -> Artifact:
    modules = modules or (built(),)
    outputs = [{"name": "y", "shape": (BATCH, WIDTH), "dtype": "float32"}]
    contents = Contents(
        target="llvm" if modules[0].kind == "llvm" else "cuda",
        inputs=[{"name": "x", "shape": (BATCH, WIDTH), "dtype": "float32"}],
        outputs=outputs,
        model={"name": "small", "seed": 0},
        **options,
    )
    return write_artifact(path, contents, modules)
