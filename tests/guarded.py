"""A GPU kernel and its packing on the CPU between unreadable pages.

KEY EPILOGUE ARCH ALGORITHM [KERNEL CONFIG], the config as JSON.

Every array, those inside the kernel included, lies against a page that kills the process when it is
touched, once at its start and once at its end. Prints the relative error.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import sys

import numpy as np
import tvm
import tvm_ffi
from convs import expected, poison, random_arrays
from serial import serialise

from tvm_winograd import ConvSpec, Epilogue
from tvm_winograd.choose.select import choose
from tvm_winograd.conv import hardware_for, scheduled
from tvm_winograd.passes.plan_workspaces import hoist_workspaces
from tvm_winograd.schedules import KERNELS
from tvm_winograd.truth import reference

_LIBC = ctypes.CDLL(None, use_errno=True)
_KEPT: list[mmap.mmap] = []


def guarded(array: np.ndarray, at_end: bool) -> np.ndarray:
    """A copy of `array` right behind, or right before, an unreadable page."""
    page = mmap.PAGESIZE
    room = -(-array.nbytes // page) * page
    memory = mmap.mmap(-1, room + 2 * page)
    _KEPT.append(memory)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for start in (base, base + page + room):
        assert _LIBC.mprotect(ctypes.c_void_p(start), page, 0) == 0
    offset = page + ((room - array.nbytes) // 64 * 64 if at_end else 0)  # TVM aligns to 64
    out = np.frombuffer(memory, array.dtype, array.size, offset).reshape(array.shape)
    out[...] = array
    return out


def main(
    key: str, epilogue_key: str, arch: str, algorithm: str, name: str = "", values: str = "{}"
) -> None:
    spec, epilogue = ConvSpec.from_key(key), Epilogue.from_key(epilogue_key)
    hardware = hardware_for("cuda", arch)
    given = [k.make_config(json.loads(values)) for k in KERNELS if k.name == name]
    config = given[0] if given else None
    choice = choose(spec, epilogue, hardware, algorithm=algorithm, config=config)
    mod, _ = scheduled(spec, epilogue, hardware, choice)
    serial = serialise(mod)
    serial["conv"], inner = hoist_workspaces(serial["conv"])  # thread loops are serial: all of them
    run = tvm.compile(serial, target="llvm")
    arrays = random_arrays(spec, epilogue)
    want = choice.kernel.pack_weights(arrays[1], spec, choice.config)
    worst = 0.0
    for at_end in (False, True):
        packing = [guarded(v, at_end) for v in (arrays[1], poison(want.shape, str(want.dtype)))]
        run["pack"](*map(tvm_ffi.from_dlpack, packing))
        assert reference.relative_error(packing[1], want) < 1e-6
        values = [arrays[0], want, *arrays[2:], poison(spec.output_shape, spec.out_dtype)]
        values += [poison(buffer.shape, buffer.dtype) for buffer in inner]
        placed = [guarded(v, at_end) for v in values]
        run["conv"](*map(tvm_ffi.from_dlpack, placed))
        out = placed[len(values) - len(inner) - 1]
        error = reference.relative_error(out, expected(spec, epilogue, arrays))
        worst = max(worst, error)
    print(worst)


if __name__ == "__main__":
    main(*sys.argv[1:])
