"""Which module of an artifact fits which GPU."""

from __future__ import annotations

import pytest

from tvm_winograd.deploy.loading import choose_modules, parse_device
from tvm_winograd.errors import ArtifactError


def module(arch: str, kind: str = "cubin", shared: int = 0) -> dict:
    functions = [{"name": "f"}, {"name": "g", "shared_bytes": shared}]
    return {"name": f"{arch}-{kind}", "arch": arch, "kind": kind, "functions": functions}


MODULES = [
    module("sm_80", shared=120_000),
    module("sm_86"),
    module("sm_90"),
    module("sm_90a"),
    module("sm_75", "ptx"),
]


@pytest.mark.parametrize(
    "cc, wanted",
    [
        (75, "sm_75-ptx"),
        (80, "sm_80-cubin"),
        (86, "sm_86-cubin"),
        (89, "sm_86-cubin"),  # same generation, lower minor number
        (90, "sm_90-cubin"),
        (100, "sm_75-ptx"),
        (120, "sm_75-ptx"),
    ],
)
def test_the_best_module_is_chosen(cc, wanted):
    assert [m["name"] for m in choose_modules(MODULES, cc, 160_000)] == [wanted]


def test_code_that_does_not_fit_is_not_chosen():
    assert choose_modules([MODULES[0], MODULES[-1]], 86, 101_376) == [MODULES[-1]]
    for modules, cc in [(MODULES[:4], 75), (MODULES[:4], 120), (MODULES[:1], 86), ([], 90)]:
        with pytest.raises(ArtifactError, match=rf"sm_{cc}.*Compile with --arch sm_{cc}"):
            choose_modules(modules, cc, 101_376)
    with pytest.raises(ArtifactError, match=r"sm_80-cubin \(cubin for sm_80\)"):
        choose_modules(MODULES[:1], 70, 101_376)


def test_boards_and_other_gpus_do_not_share_code():
    older, own = module("sm_86"), module("sm_87")
    assert choose_modules([older, own], 87, 10**6) == [own]
    assert choose_modules([older, own], 89, 10**6) == [older]
    with pytest.raises(ArtifactError, match="--arch sm_87"):
        choose_modules([older], 87, 10**6)


def test_all_buckets_of_an_architecture_must_fit():
    buckets = [{**module("sm_90", shared=s), "batch": b} for b, s in ((1, 0), (8, 200_000))]
    ptx = [{**MODULES[-1], "batch": b} for b in (1, 8)]
    assert choose_modules(buckets + ptx, 90, 232_448) == buckets
    assert choose_modules(buckets + ptx, 90, 101_376) == ptx


def test_devices():
    assert parse_device(None, "llvm") == (1, 0) and parse_device("cuda:3", "cuda") == (2, 3)
    for device, target, message in [
        ("tpu", "llvm", "supported are cpu, cuda"),
        ("cuda", "llvm", "compiled for llvm; compile with --target cuda"),
        ("cpu", "cuda", "compiled for cuda; compile with --target llvm"),
    ]:
        with pytest.raises(ArtifactError, match=message):
            parse_device(device, target)
