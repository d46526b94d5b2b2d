"""compile(): a model goes in, an artifact folder comes out."""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from .choose.select import NO_LIMITS, Limits
from .choose.wishes import Wishes, make_chooser
from .codegen import build
from .codegen.artifact import (
    Artifact,
    BuiltModule,
    check_replaceable,
    check_space,
    write_artifact,
)
from .codegen.param_store import SharedArrays
from .codegen.plan import plan_network
from .conv import hardware_for
from .deploy.batches import Batches, make_batches
from .deploy.cpu import needed
from .errors import BuildError, InputError, ModelError, UnsupportedError, as_build_error
from .frontend import Model, load_model
from .gpu import GPUS, PORTABLE, Cpu, Gpu, Hardware, cpu_for, gpu_for, make_target, parse_archs
from .ir.lock import COMPILING
from .passes.pipeline import Dump, Lowered, lower

DTYPES = ("float32",)
Progress = Callable[[str], None]


def compile(
    model: Any,
    *,
    target: str = "llvm",
    arch: str | list[str] | None = None,
    cpu: str | list[str] | None = None,
    output: str | Path | None = None,
    batch: int | tuple[int, int] | None = None,
    buckets: Sequence[int] | None = None,
    dtype: str = "float32",
    weights: str | Path | None = None,
    seed: int = 0,
    logs: str | Path | None = None,
    algorithm: str = "auto",
    limits: Limits = NO_LIMITS,
    layers: Mapping[str, str] | None = None,
    configs: Mapping[str, Any] | None = None,
    layout: str = "auto",
    labels: list[str] | None = None,
    compiler: str = "nvrtc",
    ptx: bool = True,
    cuda_graph: bool = True,
    trust: bool = False,
    input_shapes: Mapping[str, Any] | None = None,
    progress: Progress = lambda text: None,
    dump: Dump = lambda phase, mod: None,
) -> Artifact:
    """Compile a network into an artifact: one module per architecture, parameters, manifest.

    Args:
        model: a built-in name, an .onnx or .pt2 file, an ExportedProgram, or a frontend.Model.
        target: "llvm" (this CPU) or "cuda" (no GPU needed).
        arch: of cuda: "sm_90,sm_86" or a list; sm_90 if not given.
        cpu: of llvm: "x86-64-v3", "x86-64-v3,x86-64-v4" (the best that fits is loaded), a name
            of LLVM's, or "native", this machine's (the default).
        output: the folder to write; a new temporary one if not given.
        batch: images per run (default: the model's, or 1); (1, 32) for any from 1 to 32.
        buckets: of such a range the sizes to compile for (see `batches.make_batches`).
        weights: .safetensors or .npz for a built-in; else seeded random, calibrated.
        logs: a folder of tuning tables, looked at before the shipped ones.
        algorithm: for every convolution that it applies to; the others are chosen as for "auto".
        limits: on algorithms, errors and workspaces, for every convolution.
        layers: layer name -> algorithm, an error where it does not apply.
        configs: layer name -> kernel config, before everything else, for the architectures asked
            for; PTX, which must fit any GPU, keeps its defaults.
        layout: of all maps inside, "NCHW" or "NHWC" ("auto": the faster by estimate); inputs and
            outputs keep theirs.
        labels: class names for `run`.
        compiler: of CUDA code: "nvrtc" or "nvcc".
        ptx: also write PTX for GPUs newer than every architecture asked for (cuda).
        cuda_graph: launch the kernels as one CUDA graph instead of one by one (cuda).
        input_shapes: for sizes that a file leaves open: {"images": (1, 3, 320, 320)}, or by the
            name of a dynamic size, {"height": 320, "width": 320}.
        trust: torch may run what a .pt2 file holds beside tensors and a graph (docs/safety.md).
        progress: called with one line per step.  dump: called with (phase, IRModule).
    Raises:
        TvmWinogradError: a model, option, target or toolchain that does not fit.
    """
    hardware = _hardware(target, arch, cpu)
    wishes = Wishes(logs, algorithm, limits, layers or {}, configs or {}, layout)
    if dtype not in DTYPES:
        raise UnsupportedError(f"dtype={dtype!r}: only {', '.join(DTYPES)} exists for now")
    batches = make_batches(batch, buckets)
    _check_toolchain(target, compiler)
    check_space()
    if output is not None:
        check_replaceable(Path(output))
    with COMPILING:
        loaded, modules = _compiled(
            model, hardware, batches, wishes, batch, weights, seed, trust,
            input_shapes, labels, compiler,
            ptx and target == "cuda", cuda_graph, progress, dump,
        )  # fmt: skip
    path = Path(output) if output is not None else Path(tempfile.mkdtemp(prefix="tvm_winograd-"))
    progress(f"writing {path}")
    return _write(path, target, modules, loaded, batches, labels)


def _compiled(
    model: Any,
    hardware: list[Hardware],
    batches: Batches | None,
    wishes: Wishes,
    batch: int | tuple[int, int] | None,
    weights: str | Path | None,
    seed: int,
    trust: bool,
    input_shapes: Mapping[str, Any] | None,
    labels: list[str] | None,
    compiler: str,
    ptx: bool,
    cuda_graph: bool,
    progress: Progress,
    dump: Dump,
) -> tuple[Model, list[BuiltModule]]:
    """The imported model, and its modules for all hardware and batches."""
    progress(f"loading {_model_name(model)}")
    size = batch[1] if isinstance(batch, tuple) else batch
    loaded = load_model(
        model, batch=size, weights=weights, seed=seed, trust=trust, input_shapes=input_shapes
    )
    _check_labels(labels, loaded)
    networks = _at_batches(loaded, batches)
    named = len(hardware) > 1
    jobs = [_Job(h, False, network, named) for h in hardware for network in networks]
    if ptx:
        jobs += [_Job(PORTABLE, True, network) for network in networks]
    arrays = SharedArrays()
    with _builders() as pool:
        begun: list[Future[BuiltModule]] = []
        for job in jobs:
            begun.append(
                _module(job, batches, wishes, compiler, cuda_graph, arrays, pool, progress, dump)
            )
            for module in filter(Future.done, begun):
                module.result()  # an error ends it before the next is lowered
        return loaded, [module.result() for module in begun]


@dataclass(frozen=True)
class _Job:
    """One module: the network at one batch for one kind of hardware."""

    hardware: Hardware
    ptx: bool
    network: Model
    named: bool = False  # one of several CPUs

    @property
    def arch(self) -> str:
        """As in the manifest: "cpu", or its name where there are several."""
        several = isinstance(self.hardware, Cpu) and self.named
        return (
            self.hardware.cpu if isinstance(self.hardware, Cpu) and several else self.hardware.arch
        )

    def name(self, batches: Batches | None) -> str:
        """Of the module: "sm_90", "ptx", "sm_90-b8"."""
        kind = "ptx" if self.ptx else self.arch
        return f"{kind}-b{self.network.batch}" if batches else kind


@contextmanager
def _builders() -> Iterator[ThreadPoolExecutor]:
    """Threads to compile in: neither NVRTC nor LLVM holds Python's lock. An error ends them, and
    nobody waits for what they are doing."""
    pool = ThreadPoolExecutor(os.cpu_count())
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()


def _module(
    job: _Job,
    batches: Batches | None,
    wishes: Wishes,
    compiler: str,
    cuda_graph: bool,
    arrays: SharedArrays,
    pool: ThreadPoolExecutor,
    progress: Progress,
    dump: Dump,
) -> Future[BuiltModule]:
    """Lowered here, as TVM's BlockBuilder is not for threads; compiled in `pool`."""
    name, network = job.name(batches), job.network
    progress(f"lowering for {name}")
    wanted = replace(wishes, configs={}) if job.ptx else wishes
    with as_build_error(f"TVM could not lower {network.name} for {name}"):
        lowered = _lower(network, job.hardware, wanted, progress, dump)
    lowered = replace(lowered, params=arrays.share(lowered.params))
    _check_names(wishes, lowered)
    for note in lowered.notes:
        progress(f"note: {note}")
    progress(f"compiling {len(lowered.functions)} functions for {name}")
    batch = network.batch if batches else None
    return pool.submit(_build_module, name, job, lowered, batch, compiler, cuda_graph)


def _at_batches(model: Model, batches: Batches | None) -> list[Model]:
    """The network of each bucket.

    Raises:
        ModelError: an input or output whose axis 0 is not the batch.
    """
    if batches is None:
        return [model]
    networks = [model.at_batch(size) for size in batches.sizes]
    for network in networks:
        pairs = zip(
            (*model.inputs, *model.outputs), (*network.inputs, *network.outputs), strict=True
        )
        for tensor, here in pairs:
            if here.shape[:1] != (network.batch,) or here.shape[1:] != tensor.shape[1:]:
                raise ModelError(
                    f"{tensor.name!r} has the shape {here.shape} at a batch of {network.batch} and "
                    f"{tensor.shape} at {model.batch}: for a range of batches axis 0 of every "
                    "input and output must be the batch; compile it for one batch"
                )
    return networks


def _lower(
    network: Model, hardware: Hardware, wishes: Wishes, progress: Progress, dump: Dump
) -> Lowered:
    return lower(
        network.mod,
        network.params,
        hardware,
        make_chooser(hardware, wishes, progress),
        dump,
        layout=wishes.layout,
        estimate=make_chooser(hardware, wishes, tables=False),
    )


def _check_labels(labels: list[str] | None, model: Model) -> None:
    shape = model.outputs[0].shape
    if labels is not None and shape[-1:] != (len(labels),):
        raise InputError(
            f"{len(labels)} labels for an output of shape {shape}; give one for each class"
        )


def _check_names(wishes: Wishes, lowered: Lowered) -> None:
    have = [layer.name for layer in lowered.layers]
    if unknown := sorted(wishes.names - set(have)):
        raise UnsupportedError(
            f"{', '.join(unknown)}: the model's convolutions are {', '.join(have)}"
        )


def _hardware(
    target: str, arch: str | list[str] | None, cpu: str | list[str] | None
) -> list[Hardware]:
    if cpu is not None:
        if target != "llvm":
            raise UnsupportedError(f"cpu={cpu!r} goes with target llvm only")
        given = cpu.split(",") if isinstance(cpu, str) else cpu
        names = [name.strip() for name in map(str, given) if name.strip()]
        if not names:
            raise UnsupportedError(f"cpu={cpu!r}: name at least one")
        return list(map(cpu_for, dict.fromkeys(names)))
    if target == "cuda":
        text = ",".join(map(str, arch)) if isinstance(arch, list | tuple) else arch
        return [gpu_for(a) for a in parse_archs(text)]
    if arch is not None:
        raise UnsupportedError(f"arch={arch!r} goes with target cuda ({', '.join(GPUS)}) only")
    return [hardware_for(target, None)]


def _check_toolchain(target: str, compiler: str) -> None:
    """Before the minutes of work: can this machine finish it?"""
    build.host_compiler()
    if target == "cuda":
        build.ensure_cuda_codegen(compiler)


def _model_name(model: Any) -> str:
    return str(model) if isinstance(model, str | Path) else type(model).__name__


def _build_module(
    name: str,
    job: _Job,
    lowered: Lowered,
    batch: int | None,
    compiler: str,
    cuda_graph: bool,
) -> BuiltModule:
    hardware, ptx = job.hardware, job.ptx
    on_gpu = isinstance(hardware, Gpu)
    with as_build_error(f"TVM could not plan {name}"):
        plan = plan_network(lowered.mod, make_target(hardware), cuda_graph=cuda_graph and on_gpu)
    executable = build.build(
        plan, hardware, compiler=compiler, ptx=ptx, pass_config=lowered.pass_config
    )
    workspaces = lowered.workspaces
    return BuiltModule(
        name=name,
        arch=job.arch,
        device=_cpu_needs(hardware) if isinstance(hardware, Cpu) else None,
        kind="ptx" if ptx else "cubin" if on_gpu else "llvm",
        executable=executable,
        params=lowered.params,
        batch=batch,
        layout=lowered.layout.as_dict() if lowered.layout else None,
        layers=[
            {**layer.as_dict(), "workspace_bytes": sum(w.bytes for w in workspaces[layer.function])}
            for layer in lowered.layers
        ],
        functions=[
            {**entry, "workspaces": [w.as_dict() for w in workspaces[entry["name"]]]}
            for entry in lowered.functions
        ],
        planned_bytes=plan.planned_bytes,
        cuda_graph=asdict(plan.graph) if plan.graph else None,
    )


def _cpu_needs(cpu: Cpu) -> dict[str, Any]:
    """What the loader compares with the CPU that it finds (deploy/cpu.py)."""
    return {"cpu": cpu.cpu, "machine": platform.machine(), "features": needed(cpu.features)}


def _write(
    path: Path,
    target: str,
    modules: list[BuiltModule],
    model: Model,
    batches: Batches | None,
    labels: list[str] | None,
) -> Artifact:
    if not modules:
        raise BuildError("no module was asked for; name at least one architecture")
    return write_artifact(
        path,
        target=target,
        modules=modules,
        inputs=[_tensor(t) for t in model.inputs],
        outputs=[_tensor(t) for t in model.outputs],
        model=model.source,
        batches=batches,
        preprocess=model.preprocess,
        labels=labels or model.labels,
    )


def _tensor(spec: Any) -> dict[str, Any]:
    return {"name": spec.name, "shape": list(spec.shape), "dtype": spec.dtype}
