"""Each knob of the fused CUDA kernel beside its sizes, and openCNN's choice of them; no GPU."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from convs import FULL
from cuda_kernels import SM90, check, compiled, scheduled
from test_winograd_fused import launch_shared_bytes

from tvm_winograd import conv2d
from tvm_winograd.schedules.base.kernel import config_dict
from tvm_winograd.schedules.winograd_fused.kernel import KERNEL, NAMED, Fused
from tvm_winograd.shapes import ConvSpec, Epilogue

# two ragged blocks of tiles, two of filters, three steps of channels
RAGGED = ConvSpec(n=2, c=17, h=9, w=13, k=70)
CHWN = replace(RAGGED, n=34, h=3, w=4, layout="CHWN")
EVEN = ConvSpec(n=32, c=16, h=4, w=4, k=64, layout="CHWN")
REGISTERS = Fused(weights="registers")
TWELVE = Fused(bk=32, bp=12, tk=4, tp=12, lanes="eekkk", rounds=1)
SMALL = Fused(bk=32, tk=8, rounds=2, min_blocks=2)  # 64 accumulators a thread
ONE_AT_A_TIME = [
    Fused(points=2, tk=8, lanes="pkkkp"),
    Fused(bk=32, points=4, tk=8, tp=4, lanes="ppkkp", rounds=2),
    Fused(buffers=2),
    Fused(copy=1),
    Fused(fragments=2),
    Fused(fragment=1, stores=1, lanes="eppkk"),
    Fused(fragment=2, stores=2, rounds=16),
    Fused(rounds=16),
    Fused(stores=1),
    Fused(stores=2),
    Fused(stores=2, compact=True),
    Fused(compact=True),
    Fused(tiles=2, loads=2),
    Fused(tiles=2, stores=2),
    Fused(tiles=2, stores=2, bp=16, lanes="eekpk"),  # four filters side by side
    Fused(m_buffers=2),
    Fused(overlap=True),
    Fused(stages=3),
    Fused(stages=3, held=True, near=True, overlap=True),
    SMALL,
    replace(REGISTERS, buffers=2),
    replace(REGISTERS, copy=1),
    replace(REGISTERS, prefetch="after"),
    replace(REGISTERS, prefetch="after", buffers=2),
    replace(REGISTERS, prefetch="off"),
]


@pytest.mark.parametrize("config", ONE_AT_A_TIME, ids=lambda c: difference(c))
def test_scheduled_program_is_the_convolution(config: Fused) -> None:
    check(KERNEL, RAGGED, FULL, config)


def difference(config: Fused) -> str:
    plain = config_dict(Fused())
    return ",".join(f"{k}={v}" for k, v in config_dict(config).items() if v != plain[k])


@pytest.mark.parametrize("name", [n for n in NAMED if n != "opencnn-sts64"])  # opencnn's
def test_opencnn_is_the_convolution(name: str) -> None:
    check(KERNEL, CHWN, FULL, NAMED[name])


def test_opencnn_where_nothing_is_guarded() -> None:
    check(KERNEL, EVEN, FULL, NAMED["opencnn"])


@pytest.mark.parametrize(
    ("spec", "config"),
    [
        (replace(RAGGED, w=12), Fused(tiles=2, loads=2)),  # rows of 16 bytes
        (replace(RAGGED, layout="NHWC"), Fused(tiles=2, loads=2, rounds=8)),
        (replace(RAGGED, layout="NHWC"), Fused(m_buffers=2, buffers=2)),
        (replace(RAGGED, dtype="float16"), Fused(stores=2, tiles=2, compact=True)),
        (replace(RAGGED, c=35), Fused(stores=2, compact=True, rounds=8, split_c=3)),
        (replace(RAGGED, c=35), replace(SMALL, split_c=2)),
        (RAGGED, TWELVE),
        (RAGGED, replace(TWELVE, overlap=True)),
        (replace(RAGGED, layout="NHWC"), replace(TWELVE, overlap=True)),
        (CHWN, Fused(overlap=True, tiles=2, loads=2)),
        (replace(RAGGED, c=35), Fused(overlap=True, split_c=3)),
        (replace(RAGGED, n=1, h=3, w=4), Fused(overlap=True)),  # fewer tiles than a block
        (replace(RAGGED, layout="NHWC"), TWELVE),
        (replace(RAGGED, c=35), replace(TWELVE, bk=64, tk=8, rounds=2, split_c=2)),
        (RAGGED, replace(TWELVE, bp=24, tk=8, lanes="eekkp", weights="registers")),
    ],
    ids=lambda v: v.key() if isinstance(v, ConvSpec) else difference(v),
)
def test_other_layouts_and_parts(spec: ConvSpec, config: Fused) -> None:
    check(KERNEL, spec, FULL, config)


def test_tiles_that_fill_no_lanes_stay_in_registers() -> None:
    """A thread's patch is one, though 12 tiles a channel are dealt to lanes."""
    done = conv2d(ConvSpec(1, 64, 56, 56, 64), "cuda", "sm_90", "winograd-f2", TWELVE)
    assert {(r.local_bytes, r.spill_stores) for r in done.resources()} == {(0, 0)}


@pytest.mark.parametrize("name", ["opencnn-sts64-compact", "opencnn-lds64"])
def test_opencnn_compiles(name: str) -> None:
    """Through the public function; no spills, and every access of M meets each bank once."""
    done = conv2d(EVEN, "cuda", "sm_75", "winograd-f2", NAMED[name], bias=True, relu=True)
    (kernel, _) = sorted(done.resources(), key=lambda r: -r.registers)
    assert (kernel.local_bytes, kernel.spill_stores, kernel.spill_loads) == (0, 0, 0)
    assert kernel.max_threads == 256
    for found, words in zip(
        accesses(done.source()), (NAMED[name].stores, NAMED[name].loads), strict=True
    ):
        assert {(width, wavefronts(width, address)) for width, address in found} == {(words, words)}


def accesses(source: str) -> tuple[set, set]:
    """(stores of M to shared memory, loads), each (words, address); the main loop's are before."""
    stores, loads = set(), set()
    for line in source[source.rindex(" = (wino_M_local_ptr[127] + ") :].splitlines():
        target, _, value = line.strip().removesuffix(";").partition(" = ")
        stores.update(shared(target))
        loads.update(shared(value))
    return stores, loads


def shared(text: str) -> list[tuple[int, str]]:
    if found := re.match(r"\*\(float(\d)\*\)\(\(\(float\*\)buf_dyn_shmem_ptr\) \+ (.*)\)$", text):
        return [(int(found[1]), found[2])]
    return [(1, at) for at in re.findall(r"\(\(float\*\)buf_dyn_shmem_ptr\)\[([^\]]*)\]", text)]


def wavefronts(words: int, address: str) -> int:
    """Cycles of one access: the lanes that go together are those that fill 32 banks."""
    code = address.replace("(int)", "").replace("/", "//")
    group, cycles = 32 // words, 0
    for first in range(0, 32, group):
        banks: dict[int, set[int]] = {}
        for lane in range(first, first + group):
            at = eval(code.replace("threadIdx.x", str(lane)).replace("threadIdx.y", "5"))
            for word in range(at, at + words):
                banks.setdefault(word % 32, set()).add(word)
        cycles += max(len(found) for found in banks.values())
    return cycles


def test_min_blocks_is_in_the_source() -> None:
    """In both kernels' module, of the first only."""
    source = compiled(KERNEL, replace(RAGGED, c=32), replace(SMALL, split_c=2), "sm_90").source
    assert source.count("__launch_bounds__(256, 2)") == 2  # declared, defined
    assert source.count("__launch_bounds__(") == 4


@pytest.mark.parametrize(
    "config",
    [
        *NAMED.values(),
        Fused(buffers=2),
        Fused(rounds=1, stores=2),
        Fused(rounds=1, stores=2, m_buffers=2),
        Fused(rounds=1, compact=True),
        Fused(rounds=2, m_buffers=2, compact=True),
    ],
    ids=str,
)
def test_shared_bytes_is_what_the_launch_asks_for(config: Fused) -> None:
    asked = launch_shared_bytes(scheduled(KERNEL, RAGGED, Epilogue(), config))
    assert 0 <= config.shared_bytes - asked <= 4 * 1024, (config.shared_bytes, asked)


@pytest.mark.parametrize(
    ("config", "layout", "reason"),
    [
        (Fused(points=3), "NCHW", "points=3"),
        (Fused(copy=8), "NCHW", "copy=8"),
        (Fused(fragment=2), "NCHW", "2 neighbours"),
        (Fused(stores=3), "NCHW", "stores=3"),
        (Fused(buffers=3), "NCHW", "buffers=3"),
        (Fused(prefetch="late"), "NCHW", "before, after, off"),
        (Fused(prefetch="off"), "NCHW", 'weights="registers"'),
        (replace(REGISTERS, prefetch="off", buffers=2), "NCHW", "needs a prefetch"),
        (Fused(fragments=2, unroll=1), "NCHW", "unroll > 1"),
        (Fused(rounds=32), "NCHW", "does not divide"),
        (Fused(tiles=3), "NCHW", "tiles=3"),
        (Fused(loads=2), "NCHW", "no wider load"),
        (Fused(tiles=2, loads=2, stores=1), "NCHW", "lie apart"),
        (Fused(tiles=2), "NCHW", "needs stores=2"),
        (Fused(stores=2), "NHWC", "not NHWC"),
        (Fused(compact=True), "NHWC", "not NHWC"),
        (Fused(compact=True, bp=16, lanes="eekpk"), "NCHW", "32 banks"),
        (Fused(tiles=2, loads=2, split_c=2), "NCHW", "one tile"),
        (Fused(min_blocks=2), "NCHW", "registers a thread; 512 threads"),
        (Fused(min_blocks=-1), "NCHW", "min_blocks=-1"),
    ],
    ids=lambda v: difference(v) if isinstance(v, Fused) else "",
)
def test_illegal_says_why(config: Fused, layout: str, reason: str) -> None:
    assert reason in (KERNEL.illegal(config, replace(RAGGED, layout=layout), SM90) or "")


@pytest.mark.parametrize(
    ("config", "c"), [(Fused(buffers=2), 8), (Fused(buffers=2, split_c=2), 16)]
)
def test_a_single_step_has_nothing_to_write_ahead(config: Fused, c: int) -> None:
    spec = replace(RAGGED, c=c)
    assert "but 1 of 8 channels in all" in (KERNEL.illegal(config, spec, SM90) or "")
    assert KERNEL.illegal(config, replace(spec, c=2 * c), SM90) is None
    assert KERNEL.illegal(replace(config, buffers=1), spec, SM90) is None


def test_rows_from_before_these_knobs_still_mean_the_same() -> None:
    old = {"bk": 64, "bp": 32, "bc": 8, "tk": 16, "tp": 8, "lanes": "epkkp", "weights": "async"}
    assert KERNEL.make_config(old | {"rounds": 4, "unroll": 8, "split_c": 1}) == Fused()
    for config in NAMED.values():
        assert KERNEL.make_config(config_dict(config)) == config


def test_opencnn_is_tried_where_its_layout_is() -> None:
    assert set(NAMED.values()) <= set(KERNEL.configs(EVEN, SM90))
    assert NAMED["opencnn"] not in KERNEL.configs(RAGGED, SM90)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC", "CHWN"])
@pytest.mark.parametrize(("n", "c", "h"), [(1, 64, 56), (2, 128, 28), (128, 512, 7)])
def test_few_candidates_are_worth_a_measurement(n: int, c: int, h: int, layout: str) -> None:
    spec = ConvSpec(n, c, h, h, c, padding=1, layout=layout)
    found = KERNEL.configs(spec, SM90)
    assert len(found) == len(set(found)) <= 50
    assert {config.weights for config in found} == {"async", "registers"}
    thin, half = Fused(bc=4, unroll=4), Fused(unroll=4)
    assert not {thin, half} & set(found)
    assert thin in KERNEL.configs(replace(spec, c=3), SM90)
    assert half in KERNEL.configs(replace(spec, dtype="float16"), SM90)
