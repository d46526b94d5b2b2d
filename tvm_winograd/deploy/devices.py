"""The GPUs of this machine, asked of the driver itself: nothing of TVM or CUDA is loaded."""

from __future__ import annotations

import ctypes

from .libraries import load_driver

_CAPABILITY = (75, 76)  # attributes of the driver: compute capability, major and minor


def gpus() -> list[dict[str, str]]:
    """Name and architecture ("sm_90") of each; empty without a GPU or a driver."""
    driver = load_driver()
    count = ctypes.c_int()
    if driver is None or driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return []
    found = []
    for index in range(count.value):
        name = ctypes.create_string_buffer(256)
        driver.cuDeviceGetName(name, 256, index)
        parts = []
        for attribute in _CAPABILITY:
            value = ctypes.c_int()
            driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, index)
            parts.append(str(value.value))
        found.append({"name": name.value.decode(), "arch": "sm_" + "".join(parts)})
    return found
