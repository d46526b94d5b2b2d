"""Generated CUDA C as a C++ program on the CPU: what a kernel's final text computes, without a GPU.

Covered, beyond the scheduled program run serially: barriers (each thread of a block is a fiber that
runs up to the next), the waits for asynchronous copies (data lands when they are waited for, their
destination holds NaN from the copy on), helpers in inline assembly by what they stand for, several
kernels in a row, and the addresses of copies and held loads.

Not covered: what ptxas makes of the text; races between threads, beyond those that an order of the
threads between two barriers shows, drawn anew for each (`seed`); addresses of plain loads and
stores; 16-bit and integer data; tensor cores and warp intrinsics.
"""

from __future__ import annotations

import ctypes
import math
import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from convs import expected, poison, random_arrays
from cuda_kernels import compiled
from index_widths import calls, children, lowered
from tvm import DataType, tirx

from tvm_winograd.codegen.build import host_compiler
from tvm_winograd.gpu import gpu_for
from tvm_winograd.schedules.base.kernel import Kernel
from tvm_winograd.shapes import ConvSpec, Epilogue
from tvm_winograd.truth import reference

HERE = Path(__file__).parent
WAIT = r"tvm_builtin_ptx_cp_async_wait_group_async_wait_group_(\d+)"
# Device functions of the text -> what they do here; \1 and so on: numbers in the name
HELPERS = {
    WAIT: r"emulator::wait(\1);",
    r"tvm_builtin_ptx_cp_async_commit_group_async_commit_group": "emulator::commit();",
    r"ptx_cp_async_legacy_c[ag]_(\d+)_(\d+)_(\d+)": (
        r"emulator::copy(emulator::at(dst, dst_off * \2l), emulator::at(src, src_off * \3l),"
        r" \1, true);"
    ),
    r"cp_async_guarded_c[ag]_(\d+)_(\d+)_(\d+)": (
        r"emulator::copy(emulator::at(to, to_at * \2l), emulator::at(from, from_at * \3l),"
        r" \1, guard);"
    ),
    r"cp_async_near_c[ag]_(\d+)_(\d+)_(\d+)": (
        r"emulator::copy(emulator::at(to, to_at * \2l + to_near),"
        r" emulator::at(from, from_at * \3l + from_near), \1, true);"
    ),
    r"load_held": "return emulator::held_load(emulator::at(from, bytes), true);",
    r"load_held_if": "return emulator::held_load(emulator::at(from, bytes), guard);",
}
_PRELUDE_END = "#define ushort unsigned short\n#endif\n"
_HELPER = re.compile(r"(__device__ \w+ (\w+)\([^)]*\)) \{\n.*?\n\}", re.DOTALL)
_SHARED = re.compile(r"extern __shared__ __align__\(\d+\) (\w+) (\w+)\[\];")
_MAIN = """
extern "C" const char* emulate(char** starts, const long* bytes, int count, unsigned seed) {{
  using namespace emulator;
  order.seed(seed);
  for (int i = 0; i < count; ++i) buffers.push_back({{starts[i], size_t(bytes[i])}});
{launches}
  return faults.c_str();
}}
"""


@dataclass
class Launch:
    """A kernel's name, the arrays it is called with, its sizes."""

    name: str
    arguments: list[str]
    threads: dict[str, int] = field(default_factory=dict)  # "blockIdx.x" -> extent
    shared_bytes: int = 0

    def sizes(self, index: str) -> str:
        return ", ".join(str(self.threads.get(f"{index}.{axis}", 1)) for axis in "xyz")


def emulate(
    kernel: Kernel,
    spec: ConvSpec,
    epilogue: Epilogue,
    config: Any,
    arch: str = "sm_90",
    seed: int = 1,
) -> float:
    """The relative error of a float32 kernel's CUDA text on random data.

    Copies and held loads must lie inside buffers and barriers must be met by all threads.
    """
    assert spec.dtype == "float32"
    parts = lowered(kernel, spec, epilogue, config, gpu_for(arch))
    x, w, *extra = given = random_arrays(spec, epilogue)
    packed, out = kernel.pack_weights(w, spec, config), poison(spec.output_shape, "float32")
    named = dict(zip("B" * epilogue.bias + "R" * epilogue.residual, extra, strict=True))
    arrays = {"X": x, "U": packed, "A": packed, "O": out, **named}
    run_text(compiled(kernel, spec, config, arch, epilogue).source, parts, arrays, seed)
    return reference.relative_error(out, expected(spec, epilogue, given))


def run_text(text: str, parts: list[Any], arrays: dict[str, np.ndarray], seed: int = 1) -> None:
    """Runs CUDA text on arrays by the names of its arguments, in place.

    Args:
        parts: the modules of host and devices that the text is made of (index_widths.py).
    """
    host, *devices = parts
    launches = [_launch(name, func) for name, func in _functions(devices)]
    arrays = {**arrays, **_workspaces(host)}
    _run(as_cpp(text) + _main(launches, list(arrays)), list(arrays.values()), seed)


def as_cpp(source: str) -> str:
    """CUDA C from TVM's code generator as C++ on top of cuda_emulator.h."""
    text = source[source.index(_PRELUDE_END) + len(_PRELUDE_END) :]
    text = _HELPER.sub(lambda found: f"{found[1]} {{ {_effect(found[2])} }}", text)
    text = _SHARED.sub(r"\1* \2 = reinterpret_cast<\1*>(emulator::shared_memory);", text)
    for unknown in ("__shared__", "asm"):
        assert not re.search(rf"\b{unknown}\b", text), f"the emulator cannot run {unknown}"
    return f'#include "cuda_emulator.h"\n{text}'


def _effect(helper: str) -> str:
    for name, effect in HELPERS.items():
        if found := re.fullmatch(name, helper):
            return found.expand(effect)
    raise AssertionError(f"the emulator does not know {helper}")


def _functions(devices: list[Any]) -> list[tuple[str, Any]]:
    """Kernels by name, in the order of their launches: main_kernel, main_kernel_1 and so on."""
    found = [(v.name_hint, func) for mod in devices for v, func in mod.functions.items()]
    return sorted(found, key=lambda named: (len(named[0]), named[0]))


def _statements(stmt: Any) -> Iterator[Any]:
    yield stmt
    for inner in children(stmt, "seq", "body", "then_case", "else_case"):
        yield from _statements(inner)


def _launch(name: str, func: Any) -> Launch:
    launch = Launch(name, [param.name.removesuffix("_ptr") for param in func.params])
    for stmt in _statements(func.body):
        if isinstance(stmt, tirx.AttrStmt) and stmt.attr_key == "thread_extent":
            launch.threads[stmt.node.thread_tag] = int(stmt.value)
        elif isinstance(stmt, tirx.AllocBuffer) and stmt.buffer.scope() == "shared.dyn":
            launch.shared_bytes += _bytes(stmt.buffer)
    return launch


def _workspaces(host: Any) -> dict[str, np.ndarray]:
    """The arrays between kernels, poisoned."""
    found = {}
    for func in host.functions.values():
        for stmt in _statements(func.body):
            if isinstance(stmt, tirx.DeclBuffer) and calls(stmt.data, "TVMBackendAllocWorkspace"):
                found[stmt.buffer.name] = poison(_bytes(stmt.buffer) // 4, "float32")
    return found


def _bytes(buffer: Any) -> int:
    return math.prod(map(int, buffer.shape)) * DataType(str(buffer.dtype)).itemsize


def _main(launches: list[Launch], arrays: list[str]) -> str:
    calls = [
        f"  launch({one.name}, {{{', '.join(str(arrays.index(a)) for a in one.arguments)}}},"
        f" {{{one.sizes('blockIdx')}}}, {{{one.sizes('threadIdx')}}}, {one.shared_bytes});"
        for one in launches
    ]
    return _MAIN.format(launches="\n".join(calls))


def _run(text: str, arrays: list[np.ndarray], seed: int) -> None:
    """Compiles the program and runs it on the arrays, in place."""
    assert all(array.flags.c_contiguous for array in arrays)
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "kernel.cpp"), Path(folder, "kernel.so")
        source.write_text(text, encoding="utf-8")
        command = [host_compiler(), "-x", "c++", "-std=c++17", "-O0", "-w", "-fno-strict-aliasing"]
        command += ["-shared", "-fPIC", f"-I{HERE}", "-o", str(library), str(source), "-lstdc++"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        entry = ctypes.CDLL(str(library)).emulate
    entry.restype = ctypes.c_char_p
    starts = (ctypes.c_void_p * len(arrays))(*[array.ctypes.data for array in arrays])
    sizes = (ctypes.c_long * len(arrays))(*[array.nbytes for array in arrays])
    faults = entry(starts, sizes, len(arrays), seed).decode()
    assert not faults, faults
