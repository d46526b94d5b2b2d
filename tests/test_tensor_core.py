"""The tensor-core kernels without a GPU: their CUDA header on an emulator, against float64."""

from __future__ import annotations

import re
from dataclasses import fields, replace

import numpy as np
import pytest
import wgmma_emulated as emulated
from convs import expected, random_arrays
from tensor_core_cases import BASE, CASES, EXTREMES, NARROW, NONE, PATCH, SMALL, extreme

from tvm_winograd.gpu import gpu_for
from tvm_winograd.schedules.tensor_core import KERNEL, legal, pack, search, sizes, source
from tvm_winograd.schedules.tensor_core.config import TensorCore
from tvm_winograd.truth import reference

SM90 = gpu_for("sm_90")
LIMIT = 3e-7  # relative Frobenius: 2.2e-7 to 2.6e-7 on an H200, whose tensor cores truncate
STRIDED = replace(BASE, c=64, stride=2)


def bits_of_peaks(x: np.ndarray) -> np.ndarray:
    """max|x| of each image as a producer's store gives it: of what is finite."""
    finite = np.where(np.isfinite(x), np.abs(x), np.float32(0))
    return finite.reshape(len(x), -1).max(1).astype("float32").view("uint32")


@pytest.mark.parametrize("name", CASES)
def test_is_the_convolution(name: str) -> None:
    spec, epilogue, config = CASES[name]
    assert legal.illegal(config, spec, SM90) is None
    arrays = random_arrays(spec, epilogue)
    y, peaks = emulated.run(spec, epilogue, config, arrays)
    assert reference.relative_error(y, expected(spec, epilogue, arrays)) < LIMIT
    np.testing.assert_array_equal(peaks, bits_of_peaks(y))


@pytest.mark.parametrize("spec", [BASE, STRIDED, replace(BASE, c=3, k=20)], ids=["3x3", "s2", "c3"])
def test_all_chosen_configs(spec) -> None:
    arrays = random_arrays(spec, NONE)
    # few stages and blocks: both come to their turn several times
    small = {
        replace(c, stages=min(c.stages, 3), blocks=3, shares=3 if c.shares else 0)
        for c in search.configs(spec, SM90)
    }
    for config in small:
        y, _ = emulated.run(spec, NONE, config, arrays)
        assert reference.relative_error(y, expected(spec, NONE, arrays)) < LIMIT, config


@pytest.mark.parametrize("seed", range(3))
def test_any_order_of_threads_gives_the_same(seed: int) -> None:
    config = replace(SMALL, shares=3)
    arrays = random_arrays(STRIDED, NONE)
    first, _ = emulated.run(STRIDED, NONE, config, arrays)
    again, _ = emulated.run(STRIDED, NONE, config, arrays, seed=10 + seed)
    np.testing.assert_array_equal(first, again)


@pytest.mark.parametrize("kind", EXTREMES)
@pytest.mark.parametrize("given", [False, True], ids=["found", "given"])
def test_scales(kind: str, given: bool) -> None:
    spec, epilogue, arrays = extreme(kind)
    peaks = bits_of_peaks(arrays[0]) if given else None
    y, written = emulated.run(spec, epilogue, replace(NARROW, stages=4), arrays, peaks=peaks)
    check_extreme(y, expected(spec, epilogue, arrays))
    np.testing.assert_array_equal(written, bits_of_peaks(y))


def check_extreme(y: np.ndarray, want: np.ndarray) -> None:
    """Each image and filter on its own; an infinity gives NaN where float64 has it or NaN."""
    reached = ~np.isfinite(want)
    np.testing.assert_array_equal(np.isnan(y), reached)
    for image in range(len(want)):
        for filters in (slice(0, None, 2), slice(1, None, 2)):
            inside = ~reached[image, ..., filters]
            got, right = (v[image, ..., filters][inside].astype("float64") for v in (y, want))
            # float32 ends at 2^-149; below 2^-126 it has fewer bits
            scale = np.linalg.norm(right) + 2.0**-126
            assert np.linalg.norm(got - right) <= LIMIT * scale + right.size**0.5 * 2.0**-149


def test_no_image_depends_on_another() -> None:
    spec = replace(BASE, n=3, c=36, k=68)
    x, w = random_arrays(spec, NONE)
    first, _ = emulated.run(spec, NONE, SMALL, [x, w])
    x[1] *= 1e6
    x[2] = np.nan
    second, _ = emulated.run(spec, NONE, SMALL, [x, w])
    np.testing.assert_array_equal(first[0], second[0])
    assert np.isnan(second[2]).all()


def test_truncated_sums_are_few() -> None:
    for spec in (BASE, STRIDED, replace(BASE, c=512, k=512)):
        for config in search.configs(spec, SM90):
            assert config.promote * 32 <= 64
            assert legal.illegal(config, spec, SM90) is None


def test_short_sums_leave_each_step() -> None:
    spec = replace(BASE, c=128, r=1, s=1, padding=0)
    assert search.default(spec, SM90).promote == 1


@pytest.mark.parametrize("config", [SMALL, NARROW], ids=["128", "64"])
def test_packed_weights_hold_the_weights(config: TensorCore) -> None:
    spec = replace(BASE, c=37, k=131)
    w = random_arrays(spec, NONE)[1]
    packed = pack.pack_weights(w, spec, config)
    assert packed.shape == pack.shape(spec, config) and packed.dtype == "uint32"
    words, scales = sizes.weight_words(spec, config)
    alpha = packed[words:].view("float32")
    parts = packed[:words].view("float16").astype("float64")
    # the sum over all of a tile's high and low parts is that of its scaled weights
    tiles = parts.reshape(sizes.columns(spec, config), -1).sum(1)
    scaled = w.reshape(spec.k, -1).astype("float64").sum(1) / alpha[: spec.k]
    padded = np.pad(scaled, (0, scales - spec.k)).reshape(len(tiles), -1).sum(1)
    np.testing.assert_allclose(tiles, padded, rtol=1e-6)
    assert (alpha > 0).all()


@pytest.mark.parametrize("name", ["groups", "ragged-channels", "one-channel"])
def test_device_packs_as_numpy(name: str) -> None:
    spec, _, config = CASES[name]
    w = random_arrays(spec, NONE)[1]
    np.testing.assert_array_equal(
        emulated.packed(spec, config, w), pack.pack_weights(w, spec, config)
    )


def test_shared_memory_is_what_the_header_takes() -> None:
    for config in (SMALL, NARROW, TensorCore(192, 64, stages=5), PATCH):
        assert emulated.library(replace(config, blocks=1)).shared_bytes() == config.shared_bytes


def test_arguments_are_the_fields_of_the_header() -> None:
    header = (source.FOLDER / "wgmma.cuh").read_text()
    body = header[header.index("struct Conv {") : header.index("DEVICE int group_channels")]
    names = re.findall(r"(\w+)[,;]", re.sub(r"//.*", "", body))
    assert names == [f.name for f in fields(sizes.Conv)]


@pytest.mark.parametrize(
    ("config", "spec", "reason"),
    [
        (replace(SMALL, rows=64), BASE, "a tile of 64x128"),
        (replace(SMALL, promote=4), BASE, "promote=4"),
        (replace(SMALL, stages=1), BASE, "stages=1"),
        (replace(SMALL, stages=9), BASE, "shared memory"),
        (replace(SMALL, shares=4), BASE, "shares=4"),
        (replace(SMALL, blocks=1, shares=1), BASE, "whole waves"),
        (replace(PATCH, patch=12), replace(BASE, c=64), "multiple of 8"),
        (PATCH, replace(BASE, c=36), "no multiple"),
        (PATCH, replace(BASE, stride=2), "stride 2"),
        (replace(PATCH, patch=8), BASE, "one pixel is larger"),
        (SMALL, replace(BASE, layout="NCHW"), "NHWC"),
        (SMALL, replace(BASE, dtype="float16"), "float16"),
        (SMALL, replace(BASE, groups=4), "a group of 8"),
    ],
)
def test_illegal_configs_say_why(config: TensorCore, spec, reason: str) -> None:
    refused = KERNEL.supports(spec, NONE, SM90) or KERNEL.illegal(config, spec, SM90)
    assert reason in (refused or "")


def test_other_architectures_have_no_wgmma() -> None:
    for arch in ("sm_80", "sm_100"):
        assert "sm_90" in (legal.supports(BASE, NONE, gpu_for(arch)) or "")
