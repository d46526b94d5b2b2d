"""Whether this machine has an NVIDIA GPU, asked of the driver itself."""

from __future__ import annotations

import ctypes
import functools

import pytest


@functools.cache
def has_gpu() -> bool:
    """True with a driver and at least one device.

    codegen.build's stand-in for the driver answers cuInit with an error, so False there.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int(0)
    return (
        driver.cuInit(0) == 0
        and driver.cuDeviceGetCount(ctypes.byref(count)) == 0
        and count.value > 0
    )


def local_arch() -> str:
    """The architecture of the GPU here."""
    from tvm_winograd.env import collect

    return collect()["gpus"][0]["arch"]


needs_gpu = pytest.mark.skipif(not has_gpu(), reason="no NVIDIA GPU")
