"""Loads and copies that a schedule marks: the same words, by calls of ours, at immediates."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from cuda_kernels import SM90, check, compiled
from tiny_network import tiny

import tvm_winograd
from tvm_winograd.codegen import held_loads, nvrtc
from tvm_winograd.ir import marks
from tvm_winograd.schedules.winograd_fused import kernel as winograd_fused
from tvm_winograd.schedules.winograd_fused.kernel import Fused, FusedF4
from tvm_winograd.shapes import ConvSpec, Epilogue

SPEC = ConvSpec(n=1, c=32, h=9, w=11, k=20, padding=(1, 1, 1, 1))
F2 = Fused(bk=32, bp=16, tk=8, lanes="eekkp", rounds=1)
RAGGED = Fused(bk=32, bp=12, tk=4, tp=12, lanes="eekkk", rounds=1)  # some threads have no patch
F4 = FusedF4(rounds=1, fragments=2)
EPILOGUE = Epilogue(bias=True, residual=True, relu=True)
KERNELS = {Fused: winograd_fused.KERNEL, FusedF4: winograd_fused.F4}
LOADS, COPIES = r"load_held(?:_if)?\(", r"cp_async_near_cg_16_4_4\("


def source(config: Any, arch: str = "sm_90") -> str:
    """CUDA C without the definitions of helpers."""
    text = compiled(KERNELS[type(config)], SPEC, config, arch, EPILOGUE).source
    return text[
        text.rindex("conv_kernel(") if "conv_kernel(" in text else text.rindex("__global__") :
    ]


@pytest.mark.parametrize("config", [F2, RAGGED, F4], ids=["f2", "ragged", "f4"])
def test_marked_kernels_compute_the_convolution(config: Any) -> None:
    check(KERNELS[type(config)], SPEC, EPILOGUE, replace(config, held=True, near=True))


@pytest.mark.parametrize("config", [F2, RAGGED, F4], ids=["f2", "ragged", "f4"])
def test_only_what_is_marked_is_replaced(config: Any) -> None:
    plain = source(config)
    assert not re.search(f"{LOADS}|{COPIES}", plain) and "ptx_cp_async_legacy_cg" in plain
    held = source(replace(config, held=True))
    assert len(re.findall(LOADS, held)) % config.all_points == 0 and re.search(LOADS, held)
    assert "ptx_cp_async_legacy_cg" in held and "condval" not in held
    near = source(replace(config, near=True))
    assert (
        re.search(COPIES, near)
        and "ptx_cp_async_legacy_cg" not in near
        and not re.search(LOADS, near)
    )


def test_patches_are_read_in_order_by_plain_loads() -> None:
    text = compiled(winograd_fused.KERNEL, SPEC, replace(F2, held=True), "sm_90", EPILOGUE).source
    ptx = nvrtc.compile_cuda(text, "sm_90", ptx=True).binary.decode()
    assert len(re.findall(r"ld\.global\.f32", ptx)) == 2 * F2.all_points  # before and in the loop
    assert len(re.findall(r"ld\.global\.nc", ptx)) < len(re.findall(r"ld\.global\.f32", ptx))


def test_a_network_has_them_too(tmp_path: Any) -> None:
    """Its indices are 64-bit until TVM narrows them, its kernels are lowered all at once."""
    model, arch = tiny(), "sm_90"
    tvm_winograd.compile(
        model, target="cuda", arch=arch, output=tmp_path / "a", ptx=False, algorithm="winograd-f2"
    )
    done = nvrtc.last_compilation()
    assert done is not None
    kernels = [k for k in done.source.split('extern "C" __global__') if "X_ptr[" in k]
    held = [k for k in kernels if re.search(LOADS, k)]
    assert held and all("cp_async_near_cg_16_4_4(" in kernel for kernel in held)
    for kernel in held:
        assert len(re.findall(LOADS, kernel)) % 16 == 0
        assert kernel.count("X_ptr[") == kernel.count("&(X_ptr[")


def region(mark: str, *body: Any) -> Any:
    """A loop's body that is marked."""
    from tvm import tirx

    one = tirx.IntImm("int32", 1)
    return tirx.AttrStmt(one, mark, one, tirx.SeqStmt(list(body)) if len(body) > 1 else body[0])


def test_addresses_are_those_of_the_loads() -> None:
    """What a call reads, (address of the first load) + bytes, is what the load read."""
    import tvm_ffi
    from tvm import tirx
    from tvm.sym import Analyzer

    x, y = tirx.decl_buffer((4096,), "float32", "X"), tirx.decl_buffer((8,), "float32", "D")
    i, j = tirx.Var("i", "int32"), tirx.Var("j", "int32")
    indices = [i * 7 + j, i * 7 + j + 57, (i * 7 + j) - 3, i * 9, i * 9 + 1, j + i * 7]
    stores = [tirx.BufferStore(y, x[index], [n]) for n, index in enumerate(indices)]
    stores[1] = tirx.BufferStore(y, tirx.if_then_else(i < 3, x[indices[1]], 0.0), [1])
    func = tirx.PrimFunc([x, y, i, j], region(marks.HELD, *stores))
    made = held_loads.replaced(func).body.seq
    assert [store.value.args[0].value for store in made] == [
        "load_held", "load_held_if", *["load_held"] * 4,
    ]  # fmt: skip
    for store, index in zip(made, indices, strict=True):
        _, address, distance, *_ = store.value.args
        read = address.args[0].indices[0] + int(distance) // 4
        assert Analyzer().can_prove_equal(read, index), (read, index)
    assert [int(store.value.args[2]) for store in made] == [0, 57 * 4, -12, 0, 4, 0]
    assert tvm_ffi.structural_equal(
        held_loads.replaced(tirx.PrimFunc([x, y, i, j], stores[0])).body, stores[0]
    )


def test_addresses_too_far_for_an_immediate_are_their_own() -> None:
    """A distance in bytes is an int: beyond it the next loads count from another first."""
    from tvm import tirx

    x, y = tirx.decl_buffer((2**31 - 1,), "float32", "X"), tirx.decl_buffer((8,), "float32", "D")
    i, far = tirx.Var("i", "int32"), 3 * 2**28  # 3 GiB
    indices = [i, i + 1, i + far, i + (far + 1), i]
    stores = [tirx.BufferStore(y, x[index], [n]) for n, index in enumerate(indices)]
    made = held_loads.replaced(tirx.PrimFunc([x, y, i], region(marks.HELD, *stores))).body.seq
    assert [int(store.value.args[2]) for store in made] == [0, 4, 0, 4, 0]


def test_what_cannot_be_held_is_refused() -> None:
    illegal = winograd_fused.illegal
    half = replace(SPEC, dtype="float16")
    assert "float32 only, got float16" in str(illegal(replace(F2, held=True), half, SM90))
    registers = replace(F2, near=True, weights="registers")
    assert 'near and stages need weights="async"' in str(illegal(registers, SPEC, SM90))
