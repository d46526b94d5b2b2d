"""Convolution on sm_90's tensor cores with the accuracy of float32: PrimFuncs around wgmma.cuh.

    pad_channels  X -> V, S     where groups have no multiple of 4 channels; max|x| on the way
    image_peaks   X -> S        else max|x| of each image, in parts; not where S is given
    convolve      X, A, S -> O  tiles; of those that fill no wave, shares of their steps -> P
    sum_shares    P -> O        the shares' sums, where there are any

Constraints: sm_90 (wgmma runs on no other architecture), NHWC, float32; groups of 32 channels and
filters or more. Each kernel's body is one call of a CUDA function: warp roles, mbarriers and
asynchronous accumulators would not survive TVM's passes. So nothing is left to schedule.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm_winograd.activation import Applied
from tvm_winograd.shapes import ConvSpec, Epilogue

from ..base.kernel import Kernel
from . import activation, cost, legal, pack, search, sizes, source
from .config import TensorCore

PEAK_THREADS = 256
# A word of shared memory for each warp of a block that looks for a maximum
_WARPS = (PEAK_THREADS // 32, "uint32", "shared")


@dataclass(frozen=True)
class Peaks:
    """Whether max|.| of each image, the bits of a float32 in a uint32, is an argument.

    given: max|x| is, `S` behind the epilogue's inputs; else a kernel of the function finds it.
    written: max|y| is, `T` behind the output; the store raises it, the caller sets it to 0 before.
    """

    given: bool = False
    written: bool = False


NO_PEAKS = Peaks()


def prim_func(
    spec: ConvSpec, epilogue: Epilogue, config: TensorCore, peaks: Peaks = NO_PEAKS
) -> Any:
    """main(X, A[, B][, R][, S], O[, T]), ready to be built."""
    from tvm.script.ir_builder import IRBuilder
    from tvm.script.ir_builder import tirx as T

    with IRBuilder() as builder:
        with T.prim_func(s_tir=True):
            T.func_name("main")
            data = {
                name: T.arg(name, T.buffer(shape, dtype)).data
                for name, shape, dtype in _arguments(spec, epilogue, config, peaks)
            }
            T.func_attr(_READY)
            with T.sblock("root"):
                data |= _workspaces(spec, config, peaks)
                if "V" in data:
                    _pad_channels(spec, data, peaks)
                elif not peaks.given:
                    _image_peaks(spec, data)
                # A given S has one value an image, ours one for each block that looked at it.
                conv = sizes.conv_of(spec, config, 1 if peaks.given else sizes.peak_blocks(spec))
                _convolve(conv, epilogue, config, data, sizes.grid(spec, config))
                if config.shares:
                    _sum_shares(conv, epilogue, config, data, sizes.shared_tiles(spec, config))
    return builder.get()


def weight_func(spec: ConvSpec, config: TensorCore) -> Any:
    """main(W, A), ready to be built: `pack.pack_weights` on the device."""
    from tvm.script.ir_builder import IRBuilder
    from tvm.script.ir_builder import tirx as T

    with IRBuilder() as builder:
        with T.prim_func(s_tir=True):
            T.func_name("main")
            w = T.arg("W", T.buffer(spec.weight_shape, "float32")).data
            a = T.arg("A", T.buffer(pack.shape(spec, config), "uint32")).data
            T.func_attr(_READY)
            with T.sblock("root"):
                _launch(
                    f"pack_weights<{config.cuda}>",
                    sizes.columns(spec, config) * config.filters,
                    PEAK_THREADS,
                    [w, a],
                    (spec.c // spec.groups, *sizes.conv_of(spec, config, 0).values()),
                    _WARPS,
                )
    return builder.get()


# Passes that schedule leave such functions alone.
_READY = {"tirx.noalias": True, "tirx.is_scheduled": True}
_Argument = tuple[str, tuple[int, ...], str]


def _arguments(
    spec: ConvSpec, epilogue: Epilogue, config: TensorCore, peaks: Peaks
) -> list[_Argument]:
    """(name, shape, dtype) of each, in order."""
    found: list[_Argument] = [
        ("X", spec.input_shape, "float32"),
        ("A", pack.shape(spec, config), "uint32"),
    ]
    found += [("B", (spec.k,), "float32")] * epilogue.bias
    found += [("R", spec.output_shape, "float32")] * epilogue.residual
    found += [("S", (spec.n,), "uint32")] * peaks.given
    found += [("O", spec.output_shape, "float32")]
    return found + [("T", (spec.n,), "uint32")] * peaks.written


def _workspaces(spec: ConvSpec, config: TensorCore, peaks: Peaks) -> dict[str, Any]:
    """Pointers to the function's own buffers of global memory."""
    from tvm.script.ir_builder import tirx as T

    found = {}
    if not peaks.given:
        parts = spec.n * sizes.peak_blocks(spec)
        found["S"] = T.sblock_alloc_buffer((parts,), "uint32", scope="global").data
    if shape := sizes.padded_shape(spec):
        found["V"] = T.sblock_alloc_buffer(shape, "float32", scope="global").data
    if config.shares:
        words = sizes.parts_words(spec, config)
        found["P"] = T.sblock_alloc_buffer((words,), "float32", scope="global").data
    return found


def _launch(
    function: str,
    grid: int,
    threads: int,
    pointers: list[Any],
    values: tuple[int, ...],
    shared: tuple[int, str, str] | None = None,
    applied: Applied | None = None,
) -> None:
    """A kernel that calls a function of wgmma.cuh.

    Args:
        function: with its template arguments.  pointers: 0 for none.  values: numbers behind them.
        shared: (elements, dtype, scope) of shared memory, the last pointer.
        applied: the activation that the function is made with.
    """
    from tvm.script.ir_builder import tirx as T

    with T.thread_binding(0, grid, thread="blockIdx.x"):
        with T.thread_binding(0, threads, thread="threadIdx.x"):
            with T.sblock(function.split("<")[0]):
                T.reads()
                T.writes()
                if shared:
                    count, dtype, scope = shared
                    pointers = [*pointers, T.sblock_alloc_buffer((count,), dtype, scope=scope).data]
                call = T.cuda.func_call(
                    f"tensor_core::{function}", *pointers, *values, source_code=source.text(applied)
                )
                # ptxas then knows how many registers a thread begins with, as setmaxnreg needs.
                with T.attr(0, "tirx.launch_bounds_min_blocks_per_sm", 1):
                    T.evaluate(call)


def _image_peaks(spec: ConvSpec, data: dict[str, Any]) -> None:
    parts = sizes.peak_blocks(spec)
    values = (spec.h * spec.w * spec.c, parts)
    _launch("image_peaks", spec.n * parts, PEAK_THREADS, [data["X"], data["S"]], values, _WARPS)


def _pad_channels(spec: ConvSpec, data: dict[str, Any], peaks: Peaks) -> None:
    parts, found = sizes.peak_blocks(spec), 0 if peaks.given else data["S"]
    values = (spec.h * spec.w, spec.c, spec.groups, parts, 0)
    pointers = [data["X"], data["V"], found]
    _launch("pad_channels", spec.n * parts, PEAK_THREADS, pointers, values, _WARPS)


def _convolve(
    conv: sizes.Conv, epilogue: Epilogue, config: TensorCore, data: dict[str, Any], grid: int
) -> None:
    names = ("V" if "V" in data else "X", "A", "B", "R", "S", "P", "O", "T")
    _launch(
        f"convolve<{config.cuda}, {activation.name_of(epilogue.applied)}>",
        grid,
        config.threads,
        [data.get(name, 0) for name in names],
        conv.values(),
        (config.shared_bytes, "uint8", "shared.dyn"),
        epilogue.applied,
    )


def _sum_shares(
    conv: sizes.Conv, epilogue: Epilogue, config: TensorCore, data: dict[str, Any], tiles: int
) -> None:
    names = ("A", "B", "R", "S", "P", "O", "T")
    _launch(
        f"sum_shares<{config.cuda}, {activation.name_of(epilogue.applied)}>",
        tiles * config.pieces,
        config.sum_threads,
        [data.get(name, 0) for name in names],
        conv.values(),
        applied=epilogue.applied,
    )


def with_peaks(
    spec: ConvSpec, epilogue: Epilogue, config: TensorCore, given: bool, written: bool
) -> Any:
    """main(X, A[, B][, R][, S][, T], O): what `passes/chain_peaks.py` calls."""
    func = prim_func(spec, epilogue, config, Peaks(given, written))
    if not written:
        return func
    from tvm import tirx

    *inputs, out, peaks = func.params
    return tirx.PrimFunc([*inputs, peaks, out], func.body, func.ret_type, func.attrs)


KERNEL = Kernel(
    name="gemm-wgmma",
    algorithm="gemm",
    target="cuda",
    config=TensorCore,
    own_supports=legal.supports,
    own_illegal=legal.illegal,
    configs=search.configs,
    prim_func=prim_func,
    schedule=lambda sch, config, gpu: None,  # its threads are in its text
    pack_weights=pack.pack_weights,
    weight_func=weight_func,
    needs=legal.needs,
    seconds=cost.seconds,
    workspace=sizes.workspace_bytes,
    math="fp16x3",
    peaks=with_peaks,
)
