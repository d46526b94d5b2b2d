"""The fused CUDA kernel without a GPU: its schedule run on the CPU, its code through ptxas."""

from __future__ import annotations

import dataclasses

import pytest
from convs import FULL
from cuda_kernels import SM90, check, compiled, scheduled

from tvm_winograd.codegen.cubin import resources
from tvm_winograd.gpu import GPUS, Cpu, gpu_for, make_target
from tvm_winograd.schedules.winograd_fused import kernel as fused
from tvm_winograd.schedules.winograd_fused.kernel import KERNEL, Fused
from tvm_winograd.schedules.winograd_fused.search import LADDER
from tvm_winograd.shapes import ConvSpec, Epilogue

RESNET = ConvSpec(n=32, c=128, h=28, w=28, k=128)
# two ragged blocks of tiles, two of filters, three steps of channels
RAGGED = ConvSpec(n=2, c=17, h=9, w=13, k=70)
DEFAULTS = {arch: fused.default(RESNET, gpu) for arch, gpu in GPUS.items()}
# each default once, and other shapes of block and thread
CONFIGS = list(
    dict.fromkeys(
        [
            *DEFAULTS.values(),
            fused.portable(RESNET),
            *LADDER,
            Fused(tk=8, lanes="kpkkp", rounds=2),
            Fused(bk=32, lanes="eepkp", weights="registers", unroll=2),
            Fused(bp=16, bc=4, unroll=4, lanes="eekpk", rounds=1),
            Fused(bk=16, bp=64, tk=8, tp=16, lanes="eeppk", rounds=1),
            Fused(rounds=2, lanes="ekppk"),
        ]
    )
)


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_scheduled_program_is_the_convolution(config: Fused) -> None:
    check(KERNEL, RAGGED, Epilogue(), config)


@pytest.mark.parametrize("config", [Fused(), fused.portable(RAGGED)], ids=["async", "registers"])
@pytest.mark.parametrize(
    ("spec", "epilogue"),
    [
        (ConvSpec(n=2, c=4, h=9, w=13, k=4), Epilogue()),
        (ConvSpec(n=1, c=1, h=1, w=1, k=1), FULL),
        (ConvSpec(n=1, c=1, h=5, w=6, k=65, padding=(0, 2, 3, 0)), Epilogue(bias=True)),
        (ConvSpec(n=3, c=9, h=4, w=4, k=64, padding=0), Epilogue(residual=True)),
        (ConvSpec(n=33, c=8, h=2, w=2, k=3, layout="CHWN"), Epilogue(relu6=True)),
        (ConvSpec(n=2, c=9, h=9, w=13, k=17, padding=(0, 2, 1, 1), layout="NHWC"), FULL),
        (ConvSpec(n=2, c=9, h=8, w=8, k=17, layout="NHWC", dtype="float16"), FULL),
        (ConvSpec(n=2, c=9, h=8, w=8, k=17, dtype="float16"), FULL),
    ],
    ids=lambda v: v.key(),
)
def test_any_shape(spec: ConvSpec, epilogue: Epilogue, config: Fused) -> None:
    check(KERNEL, spec, epilogue, config)


@pytest.mark.parametrize("arch", GPUS)
def test_default_compiles_without_spills(arch: str) -> None:
    done = compiled(KERNEL, RESNET, DEFAULTS[arch], arch)
    assert done.kind == "cubin"
    (kernel,) = resources(done.binary, done.log)
    assert (kernel.local_bytes, kernel.spill_stores, kernel.spill_loads) == (0, 0, 0)
    assert kernel.registers <= 255
    assert kernel.max_threads == DEFAULTS[arch].threads


def test_portable_fits_every_gpu() -> None:
    config = fused.portable(RESNET)
    assert config.shared_bytes <= 48 * 1024
    for gpu in GPUS.values():
        assert KERNEL.illegal(config, RESNET, gpu) is None


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_shared_bytes_is_what_the_launch_asks_for(config: Fused) -> None:
    """In NHWC, where M has the widest padding; TVM's packing may save V's padding."""
    spec = dataclasses.replace(RAGGED, layout="NHWC")
    asked = launch_shared_bytes(scheduled(KERNEL, spec, Epilogue(), config))
    assert 0 <= config.shared_bytes - asked <= 4 * config.bc * 4


def launch_shared_bytes(mod: object) -> int:
    """The dynamic shared memory of the first launch in `mod`, read when host and device part."""
    import tvm

    calls: list[str] = []

    @tvm.ir.instrument.pass_instrument
    class Spy:
        def run_after_pass(self, mod: object, info: object) -> None:
            if info.name == "tirx.SplitHostDevice":
                calls.extend(l for l in mod.script().splitlines() if "call_ffi_kernel" in l)
                raise RuntimeError("seen enough")

    context = tvm.transform.PassContext(config=dict(KERNEL.pass_config), instruments=[Spy()])
    target = make_target(SM90)
    with pytest.raises(RuntimeError, match="seen enough"), context, target:
        tvm.compile(mod, target=target)
    call, *_ = calls
    return int(call.split("T.int64(")[1].split(")")[0])


def test_default_source_overlaps_copies_and_arithmetic() -> None:
    source = compiled(KERNEL, RESNET, Fused(), "sm_90").source
    loop = source[source.index("  for (int") :]
    loop = loop[: loop.index("\n  }")]
    assert loop.count("__syncthreads()") == 2
    assert loop.count("cp_async_legacy_cg_16_4_4(") == 8 * 16 * 64 // 4 // 256
    assert loop.count("commit_group();") == 1
    # the weights' wait comes before the next copy starts, the next patch before the arithmetic
    assert loop.index("wait_group") < loop.index("X_ptr") < loop.index("cp_async_legacy")
    assert loop.index("cp_async_legacy") < loop.index("wino_M_local_ptr[0] = ")


def test_portable_source_has_no_async_copy() -> None:
    source = compiled(KERNEL, RESNET, fused.portable(RESNET), "sm_75").source
    assert "cp_async" not in source
    loop = source[source.index("  for (int") :]
    assert loop[: loop.index("\n  }")].count("__syncthreads()") == 2


def test_default_fills_the_gpu() -> None:
    """Full blocks at batch 32, smaller ones at batch 1 (test_winograd_split.py has parts of C)."""
    assert fused.default(RESNET, SM90) == LADDER[0]
    assert fused.default(ConvSpec(n=1, c=64, h=56, w=56, k=64), SM90) == LADDER[2]
    assert fused.default(RESNET, gpu_for("sm_75")) == Fused(weights="registers")


def test_default_comes_first_and_every_config_is_legal() -> None:
    for gpu in GPUS.values():
        configs = KERNEL.configs(RESNET, gpu)
        assert configs[0] == fused.default(RESNET, gpu)
        assert len(set(configs)) == len(configs) > 3
        assert all(KERNEL.illegal(c, RESNET, gpu) is None for c in configs)


@pytest.mark.parametrize(
    ("config", "arch", "reason"),
    [
        (Fused(), "sm_75", "cp.async"),
        (Fused(tk=32, lanes="eekpp"), "sm_90", "registers a thread"),
        (Fused(bc=16), "sm_86", "shared memory"),
        (Fused(tk=6), "sm_90", "multiples of 4"),
        (Fused(bk=40), "sm_90", "does not divide"),
        (Fused(lanes="ekkkp"), "sm_90", "5 bits"),
        (Fused(rounds=3), "sm_90", "rounds=3"),
        (Fused(bc=0), "sm_90", "positive integer"),
        (Fused(bk=16, bp=16, bc=2, unroll=2, tk=4, tp=4, rounds=1), "sm_90", "evenly"),
        (Fused(bk=256, tk=8, lanes="kkkkk"), "sm_90", "5 bits"),
        (Fused(unroll=3), "sm_90", "unroll=3"),
        (Fused(weights="tma"), "sm_90", '"async" or "registers"'),
    ],
)
def test_illegal_says_why(config: Fused, arch: str, reason: str) -> None:
    assert reason in (KERNEL.illegal(config, RESNET, gpu_for(arch)) or "")


def test_supports_says_why_not() -> None:
    assert "llvm" in (KERNEL.supports(RESNET, FULL, Cpu("generic", 128, 1)) or "")
    strided = dataclasses.replace(RESNET, stride=2)
    assert "stride" in (KERNEL.supports(strided, FULL, SM90) or "")
    assert KERNEL.supports(RESNET, FULL, SM90) is None


def test_config_survives_a_log() -> None:
    from tvm_winograd.schedules.base.kernel import config_dict

    config = Fused(bc=4, unroll=4, lanes="ekppk")
    assert KERNEL.make_config(config_dict(config)) == config


def test_unpadded_map_keeps_its_async_copies() -> None:
    """Without padding a patch is a plain copy, which TVM would turn into a DMA of other chips."""
    source = compiled(
        KERNEL, ConvSpec(32, 16, 28, 28, 64, padding=(0, 0, 0, 0)), Fused(), "sm_90"
    ).source
    assert "cp_async_legacy_cg_16_4_4(" in source and "dma" not in source
