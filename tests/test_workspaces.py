"""Workspaces as arguments: the same kernels, the same bits, one plan of all memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tvm
from convs import FULL, expected, poison, random_arrays
from serial import serialise

import tvm_winograd
from tvm_winograd import ConvSpec, cli, compiler
from tvm_winograd.choose.chooser import make_chooser
from tvm_winograd.choose.options import Wishes
from tvm_winograd.choose.select import Choice, choose
from tvm_winograd.codegen import nvrtc
from tvm_winograd.codegen.build import build, export
from tvm_winograd.codegen.plan import Graph, plan_network
from tvm_winograd.conv import scheduled
from tvm_winograd.frontend.builtin import builtin_model
from tvm_winograd.frontend.resnet import ResNetConfig
from tvm_winograd.gpu import gpu_for, host_cpu, make_target
from tvm_winograd.passes import pipeline
from tvm_winograd.passes.apply_schedules import schedule_function
from tvm_winograd.passes.plan_workspaces import Workspace, hoist_workspaces
from tvm_winograd.schedules import KERNELS
from tvm_winograd.truth import reference
from tvm_winograd.truth.tolerances import tolerance

GPU = gpu_for("sm_90")
SMALL = ResNetConfig("basic", (1, 2), 10, 3, 33, (16, 24))
TINY = ResNetConfig("basic", (1,), 10, 3, 9, (16,), small_stem=True)
BY_NAME = {kernel.name: kernel for kernel in KERNELS}
STAGED = BY_NAME["winograd-f4-staged"]
CHUNKED = (ConvSpec(6, 16, 32, 32, 24), STAGED, {"bp": 32, "tp": 8, "chunks": 3})
SPLIT = (ConvSpec(1, 64, 14, 14, 64), BY_NAME["winograd-f2-fused"], {"split_c": 4})


def scheduled_conv(spec, kernel, fields):
    config = replace(kernel.configs(spec, GPU)[0], **fields)
    choice = Choice(kernel, config, "explicit", "test")
    return scheduled(spec, FULL, GPU, choice)[0]["conv"], choice


def lowered(model, hardware, algorithm="auto"):
    return pipeline.lower(
        model.mod, model.params, hardware, make_chooser(hardware, Wishes(algorithm=algorithm))
    )


@pytest.mark.parametrize("case", [CHUNKED, SPLIT], ids=["chunked", "split over C"])
def test_the_kernels_stay_the_same(case):
    func, choice = scheduled_conv(*case)
    hoisted, workspaces = hoist_workspaces(func)
    assert workspaces and len(hoisted.params) == len(func.params) + len(workspaces)
    sources = []
    for version in (func, hoisted):
        build(version, GPU, pipeline="tir", pass_config=choice.kernel.pass_config)
        sources.append(nvrtc.last_compilation().source)
    assert sources[0] == sources[1]


CONVS = (
    ConvSpec(2, 16, 9, 13, 24),
    ConvSpec(1, 64, 7, 7, 128, stride=2),
    ConvSpec(1, 8, 9, 9, 8, groups=8),
    ConvSpec(2, 12, 8, 8, 16, r=1, s=1, padding=0),
    ConvSpec(2, 16, 9, 13, 24, layout="NHWC"),
)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
def test_what_a_kernel_says_it_needs(kernel):
    hardware, count = GPU if kernel.target == "cuda" else host_cpu(), 0
    for spec in CONVS:
        if kernel.supports(spec, FULL, hardware):
            continue
        for config in kernel.configs(spec, hardware)[:4]:
            with make_target(hardware):
                func = kernel.prim_func(spec, FULL, config)
                done, _ = schedule_function(func, Choice(kernel, config, "", ""), hardware)
            needed = sum(w.bytes for w in hoist_workspaces(done)[1])
            assert kernel.workspace(config, spec) == needed, (spec, config)
            count += 1
    assert count


def test_chunks_share_a_workspace_of_one_chunk():
    spec, kernel, fields = CHUNKED
    workspaces = hoist_workspaces(scheduled_conv(*CHUNKED)[0])[1]
    whole = hoist_workspaces(scheduled_conv(spec, kernel, {**fields, "chunks": 1})[0])[1]
    assert [3 * w.bytes for w in workspaces] == [w.bytes for w in whole]


def test_every_buffer_as_an_argument():
    """Threads made loops: then all that a kernel keeps is a workspace, in loops of every depth."""
    spec, kernel, _ = CHUNKED
    func, choice = scheduled_conv(*CHUNKED)
    serial, workspaces = hoist_workspaces(serialise(tvm.IRModule({"conv": func}))["conv"])
    assert len(workspaces) > 5
    run = tvm.compile(tvm.IRModule({"conv": serial}), target=make_target(host_cpu()))
    x, w, *rest = random_arrays(spec, FULL)
    arrays = [x, choice.kernel.pack_weights(w, spec, choice.config), *rest]
    outputs = [tvm.runtime.tensor(poison(spec.output_shape, "float32"))]
    outputs += [tvm.runtime.tensor(poison(w.shape, w.dtype)) for w in workspaces]
    run["conv"](*(tvm.runtime.tensor(np.ascontiguousarray(a)) for a in arrays), *outputs)
    error = reference.relative_error(outputs[0].numpy(), expected(spec, FULL, [x, w, *rest]))
    assert error <= tolerance(spec, kernel.algorithm)


def test_tiles_inside_threads_are_no_workspaces():
    func, _ = scheduled_conv(ConvSpec(8, 16, 28, 28, 32), SPLIT[1], {"split_c": 1})
    assert hoist_workspaces(func) == (func, [])
    spec = ConvSpec(2, 16, 9, 9, 16)
    choice = choose(spec, FULL, host_cpu(), algorithm="winograd", config=None)
    assert choice.config.fused  # V and M of a thread's own tiles
    func = scheduled(spec, FULL, host_cpu(), choice)[0]["conv"]
    assert any(b.scope() == "global" for b in func.body.block.alloc_buffers)
    assert hoist_workspaces(func) == (func, [])


def test_a_network_gives_the_same_bits(monkeypatch):
    model, cpu = builtin_model(SMALL, "small", batch=2), host_cpu()
    x = np.random.default_rng(1).standard_normal(model.inputs[0].shape).astype("float32")

    def run(made):
        vm = tvm.relax.VirtualMachine(build(made.mod, cpu, pass_config=made.pass_config), tvm.cpu())
        params = [tvm.runtime.tensor(np.ascontiguousarray(p)) for p in made.params.values()]
        return vm["main"](tvm.runtime.tensor(x), params).numpy()

    made = lowered(model, cpu)
    assert sum(bool(w) for w in made.workspaces.values()) > 2
    monkeypatch.setattr(pipeline, "plan_workspaces", lambda mod: (mod, {}))
    assert np.array_equal(run(made), run(lowered(model, cpu)))


def test_plan_of_a_cuda_network():
    made = lowered(builtin_model(SMALL, "small", batch=2), GPU, "winograd-f4")
    plan = plan_network(made.mod, make_target(GPU), cuda_graph=True)
    # the stem reads the input, the dense layer writes the output
    assert plan.graph == Graph(regions=1, captured=9, launched=2)
    sizes = {name: sum(w.bytes for w in each) for name, each in made.workspaces.items()}
    used = sum(sizes[layer.function] for layer in made.layers)
    assert max(sizes.values()) < plan.planned_bytes < used  # layers share
    without = plan_network(made.mod, make_target(GPU))
    assert without.graph is None and without.planned_bytes == plan.planned_bytes


def test_bytes():
    assert Workspace((3, 4), "float32").bytes == 48 and Workspace((5,), "float16").bytes == 10


@pytest.fixture(scope="module")
def artifact(tmp_path_factory):
    config = STAGED.configs(ConvSpec(1, 16, 9, 9, 16), GPU)[0]
    configs = {f"layer1.0.conv{i}": config for i in (1, 2)}
    options = {"target": "cuda", "configs": configs, "ptx": False}
    path = tmp_path_factory.mktemp("artifacts") / "a"
    made = tvm_winograd.compile(builtin_model(TINY, "tiny"), output=path, **options)
    path = path.with_name("without")
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(nvrtc, "_run_nvrtc")  # the same sources: nothing is compiled again
        other = tvm_winograd.compile(
            builtin_model(TINY, "tiny"), output=path, cuda_graph=False, **options
        )
    assert other.manifest["modules"][0]["cuda_graph"] is None
    return made


def test_manifest(artifact, tmp_path):
    (module,) = artifact.manifest["modules"]
    assert module["cuda_graph"] == {"regions": 1, "captured": 3, "launched": 2}
    functions = {f["name"]: f["workspaces"] for f in module["functions"]}
    for layer in module["layers"]:
        taken = [4 * int(np.prod(w["shape"])) for w in functions[layer["function"]]]
        assert layer["workspace_bytes"] == sum(taken)
        assert bool(taken) == (layer["algorithm"] == "winograd-f4")
    made = tvm_winograd.compile(builtin_model(TINY, "tiny"), output=tmp_path / "cpu")
    (module,) = made.manifest["modules"]
    assert module["cuda_graph"] is None and module["planned_bytes"] > 0


def test_kernels_allocate_nothing(artifact, tmp_path):
    """By the symbols of the library: TVM's pool is not called."""
    func, choice = scheduled_conv(*CHUNKED)
    alone = build(func, GPU, pipeline="tir", pass_config=choice.kernel.pass_config)
    pool = b"TVMBackendAllocWorkspace"
    assert pool in export(alone, tmp_path / "conv.so").read_bytes()
    assert pool not in (artifact.path / "sm_90" / "module.so").read_bytes()


def test_command_line(artifact, capsys, monkeypatch):
    taken = []

    def compile(model, options, **others):
        taken.append(options.cuda_graph)
        return artifact

    monkeypatch.setattr(compiler, "compile", compile)
    command = ["compile", "resnet18", "-o", "a", "--target", "cuda"]
    assert cli.main(command) == cli.main([*command, "--no-cuda-graph"]) == 0
    assert taken == [True, False]
    assert "1 CUDA graph holds 3 of 5 function calls" in capsys.readouterr().out
