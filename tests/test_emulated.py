"""The CUDA text of kernels, run on the CPU with its barriers and waits: it is the convolution."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import cuda_emulator
import pytest
from convs import FULL
from cuda_emulator import emulate
from cuda_kernels import SM90

from tvm_winograd.schedules.base.kernel import Kernel
from tvm_winograd.schedules.gemm import kernel as implicit_gemm
from tvm_winograd.schedules.gemm.search import default as implicit_default
from tvm_winograd.schedules.im2win import kernel as im2win
from tvm_winograd.schedules.im2win.search import default as im2win_default
from tvm_winograd.schedules.winograd_fused.kernel import F4, KERNEL, Fused, FusedF4
from tvm_winograd.schedules.winograd_fused.search import default as fused_default
from tvm_winograd.schedules.winograd_staged import kernel as winograd_f4
from tvm_winograd.shapes import ConvSpec
from tvm_winograd.truth.tolerances import tolerance

# ragged blocks of tiles and filters, a ragged step of channels
RAGGED = ConvSpec(n=2, c=17, h=9, w=13, k=70)
DEEP = replace(RAGGED, c=40)  # five steps: more than copies are ahead
STRIDED = replace(RAGGED, stride=2)
POINTWISE = replace(RAGGED, r=1, s=1, padding=0)
SMALL = Fused(bk=32, bp=16, tk=8, lanes="eekkp", rounds=1, unroll=2)  # little text: compiles soon
AHEAD = replace(SMALL, stages=3, held=True, near=True, overlap=True)
TWELVE_TILES = Fused(
    bk=32, bp=12, tk=4, tp=12, lanes="eekkk", rounds=1, held=True, near=True, overlap=True
)
CASES = {
    "f2-default": (KERNEL, RAGGED, fused_default(RAGGED, SM90)),
    "f2-registers": (KERNEL, RAGGED, replace(SMALL, weights="registers")),
    "f2-two-buffers": (KERNEL, RAGGED, replace(SMALL, buffers=2)),
    "f2-three-stages": (KERNEL, DEEP, AHEAD),
    "f2-four-stages": (KERNEL, DEEP, replace(AHEAD, stages=4)),
    "f2-fragments": (KERNEL, RAGGED, replace(SMALL, fragments=2)),
    "f2-split": (KERNEL, DEEP, replace(SMALL, split_c=3)),
    "f2-twelve-tiles": (KERNEL, RAGGED, TWELVE_TILES),
    "f4-held": (F4, RAGGED, FusedF4(held=True, fragments=2, unroll=2)),
    "f4-staged": (winograd_f4.KERNEL, RAGGED, winograd_f4.KERNEL.configs(RAGGED, SM90)[0]),
    "implicit-strided": (implicit_gemm.KERNEL, STRIDED, implicit_default(STRIDED, SM90)),
    "implicit-1x1": (implicit_gemm.KERNEL, POINTWISE, implicit_default(POINTWISE, SM90)),
    "im2win": (im2win.KERNEL, RAGGED, im2win_default(RAGGED, SM90)),
}


@pytest.mark.parametrize(("kernel", "spec", "config"), CASES.values(), ids=CASES)
def test_text_computes_the_convolution(kernel: Kernel, spec: ConvSpec, config: Any) -> None:
    assert kernel.illegal(config, spec, SM90) is None
    assert emulate(kernel, spec, FULL, config) <= tolerance(spec, kernel.algorithm)


@pytest.mark.parametrize("effect", ["", r"emulator::wait(\1 + 1);"], ids=["none", "too-short"])
def test_missing_wait_is_noticed(effect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cuda_emulator.HELPERS, cuda_emulator.WAIT, effect)
    error = emulate(KERNEL, DEEP, FULL, AHEAD)
    assert not error <= tolerance(DEEP, KERNEL.algorithm)  # NaN as well
