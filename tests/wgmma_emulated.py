"""The tensor-core kernels' CUDA header as C++ on the CPU: see wgmma_emulator.h."""

from __future__ import annotations

import ctypes
import functools
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
from convs import poison

from tvm_winograd import activation
from tvm_winograd.codegen.build import host_compiler
from tvm_winograd.schedules.tensor_core import activation as functors
from tvm_winograd.schedules.tensor_core import pack, sizes
from tvm_winograd.schedules.tensor_core.config import TensorCore
from tvm_winograd.schedules.tensor_core.source import FOLDER
from tvm_winograd.shapes import ConvSpec, Epilogue

HERE = Path(__file__).parent
PEAK_THREADS = 256
ENDS = (None, *map(activation.parse, ("relu", "relu6", "silu", "gelu", "leaky_relu(0.1)")))
_SOURCE = """
#include "wgmma_emulator.h"
#include "{header}"
{functors}
using namespace tensor_core;
using Knobs = {knobs};
template <class Activation> void run(void** p, const int* s, int grid) {{
  const auto x = (const float*)p[8];  // padded
  const auto a = (const unsigned*)p[1];
  const auto bias = (const float*)p[2], residual = (const float*)p[3];
  const auto peaks = (unsigned*)p[4], peaks_out = (unsigned*)p[7];
  const auto parts = (float*)p[5], y = (float*)p[6];
  emulator::launch(grid, {threads}, Knobs::kShared, [=] {{
    convolve<Knobs, Activation>(x, a, bias, residual, peaks, parts, y, peaks_out, emulator::shared,
                                {sizes});
  }});
  const Conv conv{{{sizes}}};
  const int shared = conv.tiles<Knobs>() - conv.whole;
  emulator::launch(shared * Knobs::kGroups, {sum_threads}, 0, [=] {{
    sum_shares<Knobs, Activation>(a, bias, residual, peaks, parts, y, peaks_out, {sizes});
  }});
}}
extern "C" const char* emulate_packing(void** p, const long* bytes, const int* s, int channels) {{
  using namespace emulator;
  faults.clear(), buffers.clear();
  for (int i = 0; i < 2; ++i) buffers.push_back({{(const char*)p[i], (size_t)bytes[i]}});
  static unsigned warps[8];
  const Conv conv{{{sizes}}};
  launch(conv.columns<Knobs>() * Knobs::kFilters, {peak_threads}, 0, [=] {{
    pack_weights<Knobs>((const float*)p[0], (unsigned*)p[1], warps, channels, {sizes});
  }});
  return faults.c_str();
}}
extern "C" int shared_bytes() {{ return Knobs::kShared; }}
extern "C" const char* emulate(void** p, const long* bytes, const int* s, int grid, unsigned seed,
                               const char* activation, int channels, int given) {{
  using namespace emulator;
  faults.clear(), buffers.clear(), order.seed(seed);
  for (int i = 0; i < 9; ++i)
    if (p[i]) buffers.push_back({{(const char*)p[i], (size_t)bytes[i]}});
  static unsigned warps[8];
  const int parts = given ? 1 : s[16];
  if (p[0] != p[8])
    launch(s[0] * parts, {peak_threads}, 0, [=] {{
      pad_channels((const float*)p[0], (float*)p[8], given ? nullptr : (unsigned*)p[4], warps,
                   s[1] * s[2], channels, s[15], parts, 0);
    }});
  else if (!given)
    launch(s[0] * parts, {peak_threads}, 0, [=] {{
      image_peaks((const float*)p[0], (unsigned*)p[4], warps, s[1] * s[2] * s[3], parts);
    }});
  const std::string name(activation);
{branches}
  return faults.c_str();
}}
"""


@functools.cache
def library(config: TensorCore) -> ctypes.CDLL:
    """The kernels with the knobs of `config`, compiled once a process."""
    fields = ", ".join(f"s[{i}]" for i in range(len(sizes.Conv.__dataclass_fields__)))
    branches = "\n".join(
        f'  if (name == "{name}") run<{name}>(p, s, grid);' for name in map(functors.name_of, ENDS)
    )
    text = _SOURCE.format(
        header=FOLDER / "wgmma.cuh",
        knobs=config.cuda,
        sizes=fields,
        threads=config.threads,
        sum_threads=config.sum_threads,
        peak_threads=PEAK_THREADS,
        branches=branches,
        functors="".join(map(functors.text_of, ENDS)),
    )
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder, "kernel.cpp"), Path(folder, "kernel.so")
        source.write_text(text, encoding="utf-8")
        command = [host_compiler(), "-x", "c++", "-std=c++17", "-O1", "-w", "-fno-strict-aliasing"]
        command += ["-shared", "-fPIC", f"-I{HERE}", "-o", str(made), str(source), "-lstdc++"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        return ctypes.CDLL(str(made))


def run(
    spec: ConvSpec,
    epilogue: Epilogue,
    config: TensorCore,
    arrays: list[np.ndarray],
    seed: int = 1,
    peaks: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """(y, bits of max|y| of each image) of x, w[, bias][, residual]; poisoned before.

    Args:
        seed: of the order of threads.  peaks: the bits of max|x| of each image, if given.
    """
    x, w, *extra = arrays
    bias = extra.pop(0) if epilogue.bias else None
    residual = extra.pop(0) if epilogue.residual else None
    values = 1 if peaks is not None else sizes.peak_blocks(spec)
    found = peaks is None
    if found:
        peaks = np.full(spec.n * values, 0x7FC00000, "uint32")
    parts = poison((max(1, sizes.parts_words(spec, config)),), "float32")
    y, peaks_out = poison(spec.output_shape, "float32"), np.zeros(spec.n, "uint32")
    packed = pack.pack_weights(w, spec, config)
    given = [x, packed, bias, residual, peaks, parts, y, peaks_out]
    aligned_ = [None if v is None else aligned(v) for v in given]
    shape = sizes.padded_shape(spec)
    aligned_.append(aligned(poison(shape, "float32")) if shape else aligned_[0])
    knobs = library(replace(config, blocks=1, shares=0))  # these are no part of the C++ type
    sized = np.array(sizes.conv_of(spec, config, values).values(), "int32")
    entry = knobs.emulate
    entry.restype = ctypes.c_char_p
    pointers = (ctypes.c_void_p * 9)(*[None if v is None else v.ctypes.data for v in aligned_])
    lengths = (ctypes.c_long * 9)(*[0 if v is None else v.nbytes for v in aligned_])
    end = functors.name_of(epilogue.applied)
    faults = entry(
        pointers, lengths, sized.ctypes.data_as(ctypes.c_void_p), sizes.grid(spec, config), seed,
        end.encode(), spec.c, not found,
    ).decode()  # fmt: skip
    assert not faults, faults
    return aligned_[6], aligned_[7]


def packed(spec: ConvSpec, config: TensorCore, w: np.ndarray) -> np.ndarray:
    """The weights as the device packs them."""
    given = [aligned(w), aligned(np.full(pack.shape(spec, config), 0x7FC00000, "uint32"))]
    sized = np.array(sizes.conv_of(spec, config, 0).values(), "int32")
    entry = library(replace(config, blocks=1, shares=0)).emulate_packing
    entry.restype = ctypes.c_char_p
    pointers = (ctypes.c_void_p * 2)(*[v.ctypes.data for v in given])
    lengths = (ctypes.c_long * 2)(*[v.nbytes for v in given])
    faults = entry(
        pointers, lengths, sized.ctypes.data_as(ctypes.c_void_p), spec.c // spec.groups
    ).decode()
    assert not faults, faults
    return given[1]


def aligned(array: np.ndarray) -> np.ndarray:
    """A copy that begins at a multiple of 64 bytes, as TVM's do, and ends with its memory."""
    memory = np.empty(array.nbytes + 64, "uint8")
    offset = -memory.ctypes.data % 64
    out = memory[offset : offset + array.nbytes].view(array.dtype).reshape(array.shape)
    out[...] = array
    return out
