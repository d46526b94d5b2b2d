"""Damaged and odd image, .npy and weights files: refused with words, or read right."""

from __future__ import annotations

import struct
import zipfile

import numpy as np
import pytest
from PIL import Image

from tvm_winograd.cli.preprocess import read_input
from tvm_winograd.errors import InputError, ModelError
from tvm_winograd.frontend.weights import load_weights

PREPROCESS = {"resize": 20, "crop": 16, "mean": [0, 0, 0], "std": [1, 1, 1]}
SHAPE = (1, 3, 16, 16)


def npy(header: bytes) -> bytes:
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", 118) + header.ljust(117) + b"\n" + b"x" * 64


BAD_NPY = {
    "unclosed header": npy(b"{'descr': '<f4', 'fortran_order': False, 'shape': ((((("),
    "petabytes": npy(b"{'descr': '<f4', 'fortran_order': False, 'shape': (999999999999,99), }"),
    "cut off": npy(b"{'descr': '<f4', 'fortran_order': False, 'shape': (3,16,16), }"),
    "empty": b"",
}


@pytest.mark.parametrize("content", BAD_NPY.values(), ids=BAD_NPY)
def test_damaged_npy(content, tmp_path):
    path = tmp_path / "x.npy"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"x\.npy is not a readable"):
        read_input(path, SHAPE, None)


def test_an_archive_called_npy(tmp_path):
    np.savez(tmp_path / "x.npz", a=np.zeros(3))
    with pytest.raises(InputError, match="archive"):
        read_input((tmp_path / "x.npz").rename(tmp_path / "x.npy"), SHAPE, None)


def image(tmp_path, array, name="x.png"):
    Image.fromarray(array).save(tmp_path / name)
    return read_input(tmp_path / name, SHAPE, PREPROCESS)


def test_sixteen_bits_are_scaled_not_clipped(tmp_path):
    grey = np.arange(30 * 40, dtype="uint16").reshape(30, 40) * 50
    wide = image(tmp_path, grey)
    narrow = image(tmp_path, np.rint(grey / 257).astype("uint8"))
    np.testing.assert_array_equal(wide, narrow)
    assert wide.max() < 1
    with pytest.raises(InputError, match="32 bits"):
        image(tmp_path, grey.astype("float32"), "x.tif")


@pytest.mark.parametrize("size", [(40, 30), (17, 90), (16, 16), (1, 1), (3, 8)])
def test_the_crop_is_that_of_the_whole_resized_image(size, rng, tmp_path):
    pixels = rng.integers(0, 256, (*size, 3), dtype="uint8")
    got = image(tmp_path, pixels)
    h, w = (max(16, round(side * 20 / min(size))) for side in size)
    top, left = (h - 16) // 2, (w - 16) // 2
    whole = Image.fromarray(pixels).resize((w, h), Image.Resampling.BILINEAR)
    want = np.asarray(whole.crop((left, top, left + 16, top + 16)), "float32") / 255
    assert abs(got[0].transpose(1, 2, 0) - want).max() <= 1 / 255 + 1e-6  # of rounding


def test_a_thin_image_needs_no_memory_for_what_is_cropped(tmp_path):
    assert image(tmp_path, np.zeros((1, 60000, 3), "uint8")).shape == SHAPE


def test_too_large_an_image_and_useless_preprocessing(tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(InputError, match="exceeds limit"):
        image(tmp_path, np.zeros((50, 50), "uint8"))
    monkeypatch.undo()
    with pytest.raises(InputError, match="no use"):
        read_input(tmp_path / "x.png", SHAPE, {"size": 224})


@pytest.mark.parametrize("name, content", [("a.npz", "array"), ("b.npz", "text")])
def test_weights_files_that_hold_no_arrays(name, content, tmp_path):
    if content == "array":
        np.save(tmp_path / "w.npy", np.zeros(3))
        (tmp_path / "w.npy").rename(tmp_path / name)
    else:
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr("w", "hello")
    with pytest.raises(ModelError, match="npz file of arrays"):
        load_weights(tmp_path / name, {"w": (3,)})
