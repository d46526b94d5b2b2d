"""cp.async in CUDA code: ours behind guards, TVM's without, whatever is copied and counted."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest
from cuda_kernels import SM90, compiled

from tvm_winograd.codegen import build, cp_async, nvrtc
from tvm_winograd.errors import BuildError
from tvm_winograd.gpu import gpu_for
from tvm_winograd.schedules.base.kernel import Kernel
from tvm_winograd.schedules.gemm import kernel as implicit_gemm
from tvm_winograd.schedules.im2win import kernel as im2win
from tvm_winograd.schedules.winograd_fused import kernel as winograd_fused
from tvm_winograd.schedules.winograd_staged import kernel as winograd_f4
from tvm_winograd.shapes import ConvSpec, Epilogue

PADDED = ConvSpec(n=2, c=8, h=9, w=9, k=16, stride=2)
PLAIN = ConvSpec(n=2, c=8, h=8, w=8, k=16)
OURS, TVMS = r"cp_async_(?:guarded|near)_c[ag]_\d+_\d+_\d+", r"ptx_cp_async_legacy\w*"


def call(*arguments: Any) -> tuple[str, list[Any], str]:
    """(name, arguments, source) of the call that the operator becomes."""
    build.ensure_cuda_codegen()
    from tvm.backend.cuda.codegen.registry import CODEGEN_REGISTRY

    made, _ = CODEGEN_REGISTRY["tirx.s_tir.cp_async_raw"](list(arguments))
    name, *passed, source = made.args
    return name.value, passed, source.value


def copy(dtype: str, size: int, *guard: Any, to: str = "", index: str = "int32") -> Any:
    """`call` for a copy of `size` bytes between arrays of `dtype`."""
    from tvm import ir, tirx

    def pointer(name: str, of: str) -> Any:
        return tirx.Var(name, ir.PointerType(ir.PrimType(of), "global"))

    at = tirx.Var("at", index)
    return call(pointer("D", to or dtype), at, pointer("S", dtype), at, size, *guard)


@pytest.mark.parametrize(
    ("kernel", "spec"),
    [
        (implicit_gemm.KERNEL, PADDED),
        (implicit_gemm.KERNEL, dataclasses.replace(PADDED, layout="NHWC")),
        (implicit_gemm.KERNEL, dataclasses.replace(PADDED, layout="CHWN", n=32)),
    ],
    ids=lambda v: getattr(v, "key", lambda: "")(),
)
def test_guarded_copies_are_ours(kernel: Kernel, spec: ConvSpec) -> None:
    config = next(c for c in kernel.configs(spec, SM90) if c.inputs.startswith("async"))
    source = compiled(kernel, spec, config, "sm_90").source
    assert set(re.findall(OURS, source)) and set(re.findall(TVMS, source)) == {
        "ptx_cp_async_legacy_cg_16_4_4"
    }


@pytest.mark.parametrize(
    ("kernel", "config"),
    [
        (winograd_fused.KERNEL, winograd_fused.Fused()),
        (winograd_f4.KERNEL, winograd_f4.KERNEL.configs(PLAIN, SM90)[0]),
        (im2win.KERNEL, im2win.Im2win()),
    ],
    ids=lambda v: getattr(v, "name", ""),
)
def test_copies_without_a_guard_stay_tvms(kernel: Kernel, config: Any) -> None:
    source = compiled(kernel, PLAIN, config, "sm_90").source
    assert re.search(TVMS, source) and not re.search(OURS, source)


def test_guards() -> None:
    from tvm import tirx

    guards = [tirx.Var("g", "bool"), tirx.Var("g", "int32") < 3, tirx.IntImm("bool", 1)]
    for guard in (*guards, tirx.IntImm("int32", 0), tirx.IntImm("int32", 1)):
        name, passed, _ = copy("float32", 4, guard)
        assert name == "cp_async_guarded_ca_4_4_4" and passed[-1].same_as(guard)
    for none in ((), (-1,), (tirx.IntImm("int32", -1),)):
        name, passed, _ = copy("float32", 4, *none)
        assert name == "ptx_cp_async_legacy_ca_4_4_4" and len(passed) == 4


@pytest.mark.parametrize("size", [4, 8, 16])
@pytest.mark.parametrize("dtype", ["int8", "float16", "bfloat16", "float32", "int64", "float32x4"])
def test_every_element_in_every_copy_compiles(dtype: str, size: int) -> None:
    from tvm import tirx

    item = {"int8": 1, "float32": 4, "int64": 8, "float32x4": 16}.get(dtype, 2)
    for to, index in ((dtype, "int32"), ("uint8", "int64")):  # also merged shared memory: bytes
        name, passed, source = copy(dtype, size, tirx.Var("g", "bool"), to=to, index=index)
        to_bytes = 1 if to == "uint8" else item
        assert name == f"cp_async_guarded_{'cg' if size == 16 else 'ca'}_{size}_{to_bytes}_{item}"
        assert len(passed) == 5
    kernel = (
        'extern "C" __global__ void k(float* x, long long i) {\n'
        "  __shared__ float s[64];\n"
        f"  {name}(s, threadIdx.x * 16, x, (int)i, i < 3);\n}}\n"
    )
    ptx = nvrtc.compile_cuda(source + kernel, "sm_80", ptx=True).binary.decode()
    assert re.search(rf"cp\.async\.c[ag]\.shared\.global \[%r\d+\], \[%rd\d+\], {size}, %r\d+", ptx)


def test_what_cannot_be_copied_is_refused() -> None:
    from tvm import tirx

    guard = tirx.Var("g", "bool")
    with pytest.raises(BuildError, match="2 bytes: it copies 4, 8 or 16"):
        copy("float16", 2, guard)
    with pytest.raises(BuildError, match="int4"):
        copy("int4", 4, guard)


def test_installing_it_again_changes_nothing() -> None:
    from tvm.backend.cuda.codegen.registry import CODEGEN_REGISTRY

    build.ensure_cuda_codegen()
    before = dict(CODEGEN_REGISTRY)
    cp_async.install()
    assert before == CODEGEN_REGISTRY


def test_gpus_without_cp_async_get_none() -> None:
    config = implicit_gemm.portable(PADDED)
    source = compiled(implicit_gemm.KERNEL, PADDED, config, "sm_75", Epilogue()).source
    assert not gpu_for("sm_75").has_async_copy and "cp_async" not in source
