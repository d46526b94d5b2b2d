"""What every kernel family has and what is checked once for all of them."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest

from tvm_winograd import ConvSpec, Epilogue
from tvm_winograd.errors import UnsupportedError
from tvm_winograd.gpu import Cpu, gpu_for
from tvm_winograd.schedules import KERNELS, depthwise, gemm, im2win, winograd_fused
from tvm_winograd.schedules.base.kernel import Kernel, mistyped
from tvm_winograd.schedules.base.legal import Needs, exceeds

SCHEDULES = Path(__file__).parent.parent / "schedules"
SPEC = ConvSpec(1, 64, 56, 56, 64, padding=(1, 1, 1, 1))
SM75, SM90, CPU = gpu_for("sm_75"), gpu_for("sm_90"), Cpu("generic", 128, 2)
ANATOMY = {"config.py", "legal.py", "search.py", "cost.py", "kernel.py"}
# family -> the files that it does not have, as its __init__ explains
FAMILIES = {
    "winograd_fused": set(),
    "winograd_staged": set(),
    "gemm": set(),
    "im2win": set(),
    "depthwise": set(),
    "direct": {"legal.py", "search.py", "cost.py"},
    "on_cpu/direct": {"cost.py"},
    "on_cpu/winograd": {"cost.py"},
    "on_cpu/im2win": {"cost.py"},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_has_the_anatomy(family: str) -> None:
    folder = SCHEDULES / family
    assert {path.name for path in folder.glob("*.py")} & ANATOMY == ANATOMY - FAMILIES[family]
    init = ast.parse((folder / "__init__.py").read_text())
    words = ast.get_docstring(init) or ""
    assert "\nConstraints: " in words
    assert all(name.removesuffix(".py") in words for name in FAMILIES[family])
    (exported,) = (n.value for n in init.body if isinstance(n, ast.Assign))
    assert "KERNEL" in ast.literal_eval(exported)


def test_what_all_share_is_written_once() -> None:
    texts = {path: path.read_text() for path in SCHEDULES.rglob("*.py")}
    for words in ("cp.async (sm_80 or newer)", "bytes of shared memory; {", "registers a thread; "):
        assert [p.name for p, text in texts.items() if words in text] == ["legal.py"], words
        assert words in texts[SCHEDULES / "base" / "legal.py"]
    asking = ("isinstance(hw", "isinstance(hardware", "isinstance(gpu", "hw.kind", "hardware.kind")
    asked = [p for p, text in texts.items() if any(words in text for words in asking)]
    assert asked == [SCHEDULES / "base" / "kernel.py"]


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
def test_another_target_is_refused(kernel: Kernel) -> None:
    here, there = (SM90, CPU) if kernel.target == "cuda" else (CPU, SM90)
    spec = replace(SPEC, groups=64) if kernel is depthwise.KERNEL else SPEC
    config = kernel.configs(spec, here)[0]
    for reason in (kernel.supports(spec, Epilogue(), there), kernel.illegal(config, spec, there)):
        assert reason == (
            f"{kernel.name} compiles for {kernel.target}, got {there.kind} ({there.arch})"
        )
    assert kernel.illegal(config, spec, here) is None


def test_a_gpu_has_limits() -> None:
    assert exceeds(Needs(), SM75) is None
    assert exceeds(Needs(64 * 1024, 1024, 64, None), SM75) is None
    one = 'weights="async" needs cp.async (sm_80 or newer), got sm_75'
    assert exceeds(Needs(async_copy='weights="async"'), SM75) == one
    assert exceeds(Needs(async_copy='weights="async"'), SM90) is None
    two = "65537 bytes of shared memory; sm_75 has 65536"
    assert exceeds(Needs(shared_bytes=65537), SM75) == two
    three = "about 65 registers a thread; 1024 threads may have 64 each"
    assert exceeds(Needs(threads=1024, registers=65), SM75) == three
    most = "about 256 registers a thread; 64 threads may have 255 each"
    assert exceeds(Needs(threads=64, registers=256), SM90) == most


def test_shared_bytes() -> None:
    """What the manifest says of a kernel: the config's, the convolution's, or nothing."""
    fused = winograd_fused.Fused()
    assert winograd_fused.KERNEL.shared_bytes(fused, SPEC) == fused.shared_bytes > 0
    window = im2win.KERNEL.configs(SPEC, SM90)[0]
    assert im2win.KERNEL.shared_bytes(window, SPEC) == window.shared_for(SPEC) > 0
    wide = replace(SPEC, groups=64)
    maps = depthwise.Depthwise(channels=8)
    assert depthwise.KERNEL.shared_bytes(maps, wide) == 4 * 8 * 56 * 56
    without = {k.name for k in KERNELS if k.needs is None}
    assert without == {"direct-dlight", "winograd-cpu", "direct-cpu", "im2win-cpu"}


@pytest.mark.parametrize(
    ("config", "knob", "allowed"),
    [
        (winograd_fused.Fused(), "weights", '"async" or "registers"'),
        (winograd_fused.FusedF4(), "prefetch", "one of before, after, off"),
        (gemm.Implicit(), "inputs", "one of async16, async4, registers"),
        (gemm.Im2col(), "inputs", '"workspace"'),
        (im2win.Im2win(), "copies", "one of async, registers, plain"),
    ],
)
def test_knobs_name_their_values(config: object, knob: str, allowed: str) -> None:
    assert mistyped(config) is None
    wrong = replace(config, **{knob: "magic"})
    assert mistyped(wrong) == f"{knob}='magic': {allowed}"
    (kernel,) = (k for k in KERNELS if k.config is type(config))
    assert kernel.illegal(wrong, SPEC, SM90) == f"{knob}='magic': {allowed}"
    with pytest.raises(UnsupportedError, match="magic"):
        kernel.make_config({knob: "magic"})
    assert mistyped(replace(config, bk="64")) == "bk='64' is no int"
