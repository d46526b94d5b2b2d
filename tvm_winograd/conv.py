"""One convolution without a network: for tests, benchmarks and researchers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm

from .choose.select import Choice, Limits, choose
from .codegen import build as builder
from .codegen.nvrtc import last_compilation
from .deploy import devices
from .errors import InputError, SpecError, UnsupportedError
from .gpu import DEFAULT_ARCH, GPUS, Hardware, gpu_for, host_cpu
from .passes.apply_schedules import needed_of, schedule_function
from .shapes import DTYPES, ConvSpec, Epilogue
from .tables import lookup as logs


def arch_here() -> tuple[str, str]:
    """The architecture to compile for where none is asked for, and why it is that one."""
    for gpu in devices.gpus():
        if gpu["arch"] in GPUS:
            return gpu["arch"], f"of the {gpu['name']} that is here"
        return DEFAULT_ARCH, f"the {gpu['name']} here is {gpu['arch']}, which is not supported"
    return DEFAULT_ARCH, "no GPU is here"


def hardware_for(target: str, arch: str | None) -> Hardware:
    """The hardware described by the user's words.

    Raises:
        UnsupportedError: a target other than llvm and cuda, or an unknown architecture.
    """
    if target == "llvm":
        if arch not in (None, "cpu"):
            raise UnsupportedError(f"arch={arch!r} with target llvm: leave it out (host CPU)")
        return host_cpu()
    if target == "cuda":
        return gpu_for(arch or arch_here()[0])
    raise UnsupportedError(f"target={target!r}: supported are llvm, cuda")


def conv2d(
    spec: ConvSpec,
    target: str = "llvm",
    arch: str | None = None,
    algorithm: str = "auto",
    config: Any = None,
    bias: bool = False,
    residual: bool = False,
    relu: bool = False,
    *,
    relu6: bool = False,
    activation: str | None = None,
    math: str = "float32",
    compiler: str = "nvrtc",
    rows: Sequence[logs.Row] = (),
) -> CompiledConv:
    """Compile one convolution with its epilogue.

    Args:
        spec: the convolution.  target: "llvm" (this CPU) or "cuda".  arch: e.g. "sm_90".
        algorithm: one of select.ALGORITHMS.  config: of the chosen kernel, else logs or default.
        activation: of the table in activation.py, e.g. "silu" or "leaky_relu(0.1)"; relu and relu6
            are short for two of them.
        math: what float32 products may be computed with, of precision.WISHES.
        rows: tuning results to choose from.
    Raises:
        UnsupportedError: the algorithm or config cannot compute this convolution there.
    """
    if not isinstance(spec, ConvSpec):
        raise SpecError(
            f"spec is a {type(spec).__name__}: a ConvSpec is needed (or from_key(text))"
        )
    hardware = hardware_for(target, arch)
    epilogue = Epilogue(bias, residual, relu, relu6, activation=activation)
    asked: dict[str, Any] = {"algorithm": algorithm, "config": config, "limits": Limits(math=math)}
    choice = choose(spec, epilogue, hardware, rows=rows, **asked)
    return CompiledConv(spec, epilogue, hardware, choice, compiler)


class CompiledConv:
    """A compiled convolution, called with arrays (x, w[, bias][, residual]).

    x, residual: spec.layout, spec.dtype (the residual spec.out_dtype); w (k, c/groups, r, s);
    bias (k,) in spec.acc. numpy in gives numpy out; anything else is taken through DLPack, must
    be on the device, and gives a DLPack-capable tvm_ffi tensor. The weights are transformed on
    the device at each call; `pack` and `run` are the two halves.
    """

    def __init__(
        self,
        spec: ConvSpec,
        epilogue: Epilogue,
        hardware: Hardware,
        choice: Choice,
        compiler: str = "nvrtc",
    ) -> None:
        self.spec, self.epilogue, self.hardware, self.choice = spec, epilogue, hardware, choice
        self.mod, self.schedule = scheduled(spec, epilogue, hardware, choice)
        self.executable = builder.build(
            self.mod,
            hardware,
            pipeline="tir",
            compiler=compiler,
            pass_config=choice.kernel.pass_config,
        )
        self._compilation = last_compilation() if hardware.kind == "cuda" else None

    def source(self) -> str:
        """The generated CUDA C++ (LLVM IR for llvm)."""
        if self._compilation is not None:
            return self._compilation.source
        return str(self.executable.mod.inspect_source("ll"))

    def resources(self) -> list[Any]:
        """cubin.KernelResources of each kernel; empty for llvm."""
        if self._compilation is None:
            return []
        from .codegen.cubin import resources

        return resources(self._compilation.binary, self._compilation.log)

    @property
    def device(self) -> Any:
        return tvm.device(self.hardware.kind if self.hardware.kind == "cuda" else "cpu", 0)

    def __call__(self, x: Any, w: Any, *rest: Any) -> Any:
        numpy_in = isinstance(x, np.ndarray)
        out = self.run(self._take("x", x), self.pack(w), *rest)
        return out.numpy() if numpy_in else out

    def pack(self, w: Any) -> Any:
        """The transformed weights, as a tensor on the device."""
        weights = self._take("w", w)
        packed = self._empty(self._buffer("pack", 1))
        self.executable["pack"](weights, packed)
        return packed

    def run(self, x: Any, packed: Any, *rest: Any, out: Any = None) -> Any:
        """The convolution with weights from `pack`; `out` may be given to write into.

        Raises:
            InputError: a wrong number, shape or dtype; `out` shares memory with an input.
        """
        names = ["bias"] * self.epilogue.bias + ["residual"] * self.epilogue.residual
        if len(rest) != len(names):
            raise InputError(
                f"got {len(rest)} arrays behind x and w, the epilogue {self.epilogue.key()} "
                f"takes {len(names)}: {', '.join(names) or 'none'}"
            )
        taken = [self._take(name, value) for name, value in zip(names, rest, strict=True)]
        packed = self._tensor("packed", packed, *self._described("pack", 1))
        if out is None:
            out = self._empty(self._buffer("conv", -1))
        target = self._tensor("out", out, *self._described("conv", -1), copy=False)
        values = [self._take("x", x), packed, *taken]
        for name, value in zip(["x", "packed", *names], values, strict=True):
            if _share_memory(value, target):
                raise InputError(f"out shares memory with {name}, which is read meanwhile")
        self.executable["conv"](*values, target)
        return out

    def _buffer(self, function: str, index: int) -> Any:
        func = self.mod[function]
        return func.params[index]

    def _empty(self, buffer: Any) -> Any:
        return tvm.runtime.empty([int(v) for v in buffer.shape], buffer.dtype, self.device)

    def _described(self, function: str, index: int) -> tuple[tuple[int, ...], str]:
        """Shape and dtype of an argument."""
        buffer = self._buffer(function, index)
        return tuple(int(v) for v in buffer.shape), str(buffer.dtype)

    def _take(self, name: str, value: Any) -> Any:
        """An argument of the call, by its name, as a tensor on the device."""
        spec = self.spec
        shape, dtype = {
            "x": (spec.input_shape, spec.dtype),
            "w": (spec.weight_shape, spec.dtype),
            "bias": ((spec.k,), DTYPES[spec.dtype][0]),
            "residual": (spec.output_shape, spec.out_dtype),
        }[name]
        return self._tensor(name, value, shape, dtype)

    def _tensor(
        self, name: str, value: Any, shape: tuple[int, ...], dtype: str, copy: bool = True
    ) -> Any:
        """`value` as a tensor on the device, shape and dtype checked; numpy's copied if `copy`."""
        if not hasattr(value, "__dlpack__"):
            raise InputError(
                f"{name} is a {type(value).__name__}: a numpy array or a tensor with __dlpack__ "
                "(torch, cupy, tvm_ffi) is needed"
            )
        got = (tuple(int(v) for v in value.shape), str(value.dtype).removeprefix("torch."))
        if got != (shape, dtype):
            raise InputError(f"{name}: got {got[1]} {got[0]}, needed is {dtype} {shape}")
        if copy and isinstance(value, np.ndarray):
            return tvm.runtime.tensor(np.ascontiguousarray(value), self.device)
        if isinstance(value, tvm.runtime.Tensor):
            return value
        try:
            return tvm.runtime.from_dlpack(value)
        except (BufferError, RuntimeError) as error:
            raise InputError(
                f"{name} cannot be shared through DLPack: {error} Pass a contiguous copy"
            ) from error


def _share_memory(one: Any, other: Any) -> bool:
    first, second = one.data_ptr(), other.data_ptr()
    return first < second + _bytes(other) and second < first + _bytes(one)


def _bytes(tensor: Any) -> int:
    return tensor.numel() * tvm.DataType(str(tensor.dtype)).itemsize


def scheduled(
    spec: ConvSpec, epilogue: Epilogue, hardware: Hardware, choice: Choice
) -> tuple[tvm.IRModule, dict[str, Any]]:
    """Module of the PrimFuncs "conv" and "pack", and how "conv" was scheduled."""
    from .gpu import make_target

    kernel, config = choice.kernel, choice.config
    with make_target(hardware):
        conv, report = schedule_function(kernel.prim_func(spec, epilogue, config), choice, hardware)
        pack, _ = schedule_function(kernel.weight_func(spec, config), None, hardware)
    functions = {"conv": conv, "pack": pack}
    mod = tvm.IRModule({n: f.with_attr("global_symbol", n) for n, f in functions.items()})
    return mod, report | needed_of(choice, spec)
