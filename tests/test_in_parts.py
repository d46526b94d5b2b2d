"""Device code in parts: every kernel once, the same on every machine, each with its name."""

from __future__ import annotations

import pytest
import tvm

import tvm_winograd
from tvm_winograd.codegen import in_parts, nvrtc
from tvm_winograd.codegen.cubin import device_blobs, resources
from tvm_winograd.frontend.resnet import ResNetConfig
from tvm_winograd.gpu import gpu_for
from tvm_winograd.schedules import winograd_staged

TINY = ResNetConfig("basic", (1, 1), 10, 3, 16, (16, 32), small_stem=True)


def test_parts_hold_every_function_in_order():
    empty = tvm.tirx.PrimFunc([], tvm.tirx.Evaluate(0))
    names = [f"f{i}" for i in (3, 1, 9, 0, 7, 5, 4, 2)]
    mod = tvm.IRModule({name: empty.with_attr("global_symbol", name) for name in names})
    found = [[str(v.name_hint) for v in part.functions] for part in in_parts.parts(mod)]
    assert [len(part) for part in found] == [6, 2]
    assert sorted([*found[0], *found[1]]) == sorted(names) and max(found[0]) < min(found[1])


@pytest.fixture
def compiled(tmp_path, monkeypatch):
    """(artifact, compilations) of a small network, compiled from nothing."""
    done = []
    original = nvrtc.compile_cuda
    monkeypatch.setattr(
        nvrtc, "compile_cuda", lambda *a, **k: done.append(original(*a, **k)) or done[-1]
    )
    options = {"target": "cuda", "arch": "sm_80", "ptx": False, "cache": False}
    path, steps = tmp_path / "a", []
    from tvm_winograd.frontend import builtin

    monkeypatch.setitem(builtin.BUILTINS, "tiny", TINY)
    monkeypatch.setattr("tvm_winograd.compiler._SAY_SECONDS", 0.05)
    artifact = tvm_winograd.compile("tiny", output=path, progress=steps.append, **options)
    return artifact, done, steps


def test_a_network_of_several_parts(compiled):
    artifact, done, steps = compiled
    (module,) = artifact.manifest["modules"]
    blobs = device_blobs(artifact.path / module["file"])
    assert len(blobs) == len(done) > 1 and {kind for kind, _ in blobs} == {"cubin"}
    kernels = [r.name for d in done for r in resources(d.binary, d.log)]
    assert len(kernels) == len(set(kernels)) > in_parts._KERNELS
    said = [step for step in steps if " kernels" in step]
    assert any(f" of {len(kernels)} kernels" in step for step in said)


def test_a_convolution_is_one_part():
    """So that its resources are those of all its kernels."""
    spec, staged = tvm_winograd.ConvSpec(n=8, c=64, h=12, w=12, k=64), winograd_staged.KERNEL
    config = staged.configs(spec, gpu_for("sm_80"))[0]
    conv = tvm_winograd.conv2d(spec, target="cuda", arch="sm_80", config=config, bias=True)
    assert len(conv.resources()) == 4  # and that of packing


def test_type_traits_stay_where_they_are_used():
    head = "#include <cuda/std/type_traits>\nnamespace std { using cuda::std::is_same; }\n"
    assert nvrtc._lean(head + "int a;") == "\nint a;"
    used = head + "bool b = std::is_same<int, int>::value;"
    assert nvrtc._lean(used) == used
