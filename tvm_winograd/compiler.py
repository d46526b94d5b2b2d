"""compile(): a model goes in, an artifact folder comes out."""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from .choose.chooser import check_wishes, make_chooser
from .choose.options import Options, Wishes, document
from .codegen import build
from .codegen.artifact import (
    Artifact,
    BuiltModule,
    Contents,
    check_replaceable,
    check_space,
    write_artifact,
)
from .codegen.library import library_of
from .codegen.nvrtc import Progress as KernelProgress
from .codegen.nvrtc import compiler_version
from .codegen.param_store import SharedArrays
from .codegen.plan import Plan, plan_network
from .conv import arch_here, hardware_for
from .deploy.batches import Batches, make_batches
from .deploy.cpu import needed
from .errors import InputError, ModelError, UnsupportedError, as_build_error
from .frontend import Model, load_model
from .gpu import GPUS, PORTABLE, Cpu, Gpu, Hardware, cpu_for, gpu_for, make_target, parse_archs
from .ir.lock import COMPILING
from .passes.pipeline import Dump, Lowered, lower

Progress = Callable[[str], None]
DEFAULTS = Options()
_SAY_SECONDS = 10  # between two lines of progress


def compile(
    model: Any,
    *,
    output: str | Path | None = None,
    options: Options = DEFAULTS,
    progress: Progress = lambda text: None,
    dump: Dump = lambda phase, mod: None,
    **asked: Any,
) -> Artifact:
    """Compile a network into an artifact: one module per architecture, parameters, manifest.

    Args:
        model: a built-in name, an .onnx or .pt2 file, an ExportedProgram, or a frontend.Model.
        output: the folder to write; a new temporary one if not given.
        options: what is asked for; `asked` changes its fields, which are
            {options}
        progress: called with one line per step.  dump: called with (phase, IRModule).
    Raises:
        TvmWinogradError: a model, option, target or toolchain that does not fit.
        TypeError: a keyword that is no option.
    """
    options = options.but(**asked)
    hardware = _hardware(options, progress)
    batches = make_batches(options.batch, options.buckets)
    _check_toolchain(options)
    for each in hardware:
        check_wishes(each, options)
    check_space()
    if output is not None:
        check_replaceable(Path(output))
    with COMPILING:
        progress(f"loading {_model_name(model)}")
        network = _load(model, options)
        for note in network.notes:
            progress(f"note: {note}")
        work = _Work(options, batches, progress, dump)
        modules = work.modules(_jobs(hardware, _at_batches(network, batches), options))
    path = Path(output) if output is not None else Path(tempfile.mkdtemp(prefix="tvm_winograd-"))
    progress(f"writing {path}")
    return write_artifact(path, _contents(network, options, batches), modules)


document(compile, Options)


def _load(model: Any, options: Options) -> Model:
    """The model at its largest batch, its labels checked."""
    size = options.batch[1] if isinstance(options.batch, tuple) else options.batch
    network = load_model(
        model,
        batch=size,
        weights=options.weights,
        seed=options.seed,
        trust=options.trust,
        input_shapes=options.input_shapes,
    )
    _check_labels(options.labels, network)
    return network


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
        if self.named and isinstance(self.hardware, Cpu):
            return self.hardware.cpu
        return self.hardware.arch

    def name(self, batches: Batches | None) -> str:
        """Of the module: "sm_90", "ptx", "sm_90-b8"."""
        kind = "ptx" if self.ptx else self.arch
        return f"{kind}-b{self.network.batch}" if batches else kind


def _jobs(hardware: list[Hardware], networks: list[Model], options: Options) -> list[_Job]:
    named = len(hardware) > 1
    jobs = [_Job(h, False, network, named) for h in hardware for network in networks]
    if options.ptx and options.target == "cuda":
        jobs += [_Job(PORTABLE, True, network) for network in networks]
    return jobs


@dataclass(frozen=True)
class _Work:
    """The modules of one compilation: lowered one after the other, compiled in threads."""

    options: Options
    batches: Batches | None
    progress: Progress
    dump: Dump
    arrays: SharedArrays = field(default_factory=SharedArrays)
    kernels: KernelProgress = field(default_factory=KernelProgress)

    def modules(self, jobs: list[_Job]) -> list[BuiltModule]:
        """Every job's module. Neither NVRTC nor LLVM holds Python's lock; an error ends them."""
        pool = ThreadPoolExecutor(os.cpu_count())
        begun: dict[Future[BuiltModule], str] = {}
        try:
            for job in jobs:
                module = pool.submit(self.build, job, self.lowered(job))
                begun[module] = job.name(self.batches)
                for module in filter(Future.done, begun):
                    module.result()  # an error ends it before the next is lowered
            self._wait(begun)
            return [module.result() for module in begun]
        finally:  # nobody waits for what an interrupted one is doing
            pool.shutdown(wait=False, cancel_futures=True)

    def _wait(self, begun: Mapping[Future[BuiltModule], str]) -> None:
        """Until all are done or one fails; says now and then what is still compiled."""
        left = set(begun)
        while left:
            done, left = wait(left, _SAY_SECONDS, FIRST_EXCEPTION)
            if any(module.exception() for module in done):
                return
            if left:
                names = ", ".join(name for module, name in begun.items() if module in left)
                count = f"; {self.kernels}" if self.kernels.total else ""
                self.progress(f"compiling {names}{count}")

    def lowered(self, job: _Job) -> Lowered:
        """The network scheduled for a job's hardware: here, as TVM's BlockBuilder has no locks."""
        name, network = job.name(self.batches), job.network
        self.progress(f"lowering for {name}")
        wishes = self.options.but(configs={}) if job.ptx else self.options
        with as_build_error(f"TVM could not lower {network.name} for {name}"):
            lowered = lower(
                network.mod,
                network.params,
                job.hardware,
                make_chooser(job.hardware, wishes, self.progress),
                self.dump,
                layout=wishes.layout,
                estimate=make_chooser(job.hardware, wishes, tables=False),
            )
        lowered = replace(lowered, params=self.arrays.share(lowered.params))
        _check_names(self.options, lowered)
        for note in lowered.notes:
            self.progress(f"note: {note}")
        self.progress(f"compiling {len(lowered.functions)} functions for {name}")
        return lowered

    def build(self, job: _Job, lowered: Lowered) -> BuiltModule:
        """A job's machine code; in a thread of its own."""
        name, options, hardware = job.name(self.batches), self.options, job.hardware
        graph = options.cuda_graph and isinstance(hardware, Gpu)
        with as_build_error(f"TVM could not plan {name}"):
            plan = plan_network(lowered.mod, make_target(hardware), cuda_graph=graph)
        library = library_of(
            plan,
            hardware,
            compiler=options.compiler,
            ptx=job.ptx,
            cache=options.cache,
            pass_config=lowered.pass_config,
            kernels=self.kernels,
        )
        batch = job.network.batch if self.batches else None
        kind = "ptx" if job.ptx else "cubin" if isinstance(hardware, Gpu) else "llvm"
        module = BuiltModule(name, job.arch, kind, library, lowered.params, batch)
        device = _cpu_needs(hardware)
        compiler = None if device else compiler_version(options.compiler)
        return replace(_described(module, lowered, plan), device=device, compiler=compiler)


def _described(module: BuiltModule, lowered: Lowered, plan: Plan) -> BuiltModule:
    """The module with what its manifest says of it."""
    workspaces = lowered.workspaces
    return replace(
        module,
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


def _check_labels(labels: Sequence[str] | None, model: Model) -> None:
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


def _hardware(options: Options, progress: Progress) -> list[Hardware]:
    arch, cpu = options.arch, options.cpu
    if cpu is not None:
        if options.target != "llvm":
            raise UnsupportedError(f"cpu={cpu!r} goes with target llvm only")
        if not (names := [name.strip() for name in _listed(cpu) if name.strip()]):
            raise UnsupportedError(f"cpu={cpu!r}: name at least one")
        return list(map(cpu_for, dict.fromkeys(names)))
    if options.target == "cuda":
        if arch is None:
            arch, why = arch_here()
            progress(f"for {arch} ({why})")
        return [gpu_for(a) for a in parse_archs(",".join(_listed(arch)))]
    if arch is not None:
        raise UnsupportedError(f"arch={arch!r} goes with target cuda ({', '.join(GPUS)}) only")
    return [hardware_for(options.target, None)]


def _listed(names: str | Sequence[str]) -> list[str]:
    return names.split(",") if isinstance(names, str) else list(map(str, names))


def _check_toolchain(options: Options) -> None:
    """Before the minutes of work: can this machine finish it?"""
    build.host_compiler()
    if options.target == "cuda":
        build.ensure_cuda_codegen(options.compiler)


def _model_name(model: Any) -> str:
    return str(model) if isinstance(model, str | Path) else type(model).__name__


def _contents(network: Model, options: Options, batches: Batches | None) -> Contents:
    return Contents(
        target=options.target,
        inputs=[_tensor(t) for t in network.inputs],
        outputs=[_tensor(t) for t in network.outputs],
        model=network.source,
        batches=batches,
        preprocess=network.preprocess,
        labels=options.labels or network.labels,
        options=options.record(),
    )


def _tensor(spec: Any) -> dict[str, Any]:
    return {"name": spec.name, "shape": list(spec.shape), "dtype": spec.dtype}


def _cpu_needs(hardware: Hardware) -> dict[str, Any] | None:
    """What the loader compares with the CPU that it finds (deploy/cpu.py)."""
    if not isinstance(hardware, Cpu):
        return None
    features = needed(hardware.features)
    return {"cpu": hardware.cpu, "machine": platform.machine(), "features": features}
