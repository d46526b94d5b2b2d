"""Recurrent layers: a thread of the CPU, or a block of a GPU's threads, walks along time.

A walk belongs to one direction of one batch element. On a GPU its units are dealt to the threads;
the state that all of them read lies in shared memory, what a unit keeps for itself in registers.
"""

from __future__ import annotations

from typing import Any

from tvm_winograd.gpu import Cpu
from tvm_winograd.ir.recurrent import Recurrent, recurrent_of
from tvm_winograd.te.common import ceil_div
from tvm_winograd.te.recurrent import ADD, EXCHANGED, LAYER, PRODUCT

from ..base import blocks
from ..base.blocks import Block, Loop, Schedule
from .cores import spread

_LANES = 64, 32, 16, 8  # sums that a core keeps in registers; of others LLVM makes vectors
_THREADS = 1024  # a block, at most
_LOADS = 8  # that a thread of a GPU has in flight for each gate, at most


def schedule(func: Any, cpu: Cpu | None) -> Any | None:
    """The scheduled PrimFunc, or None if `func` is no recurrent layer.

    Args:
        cpu: None for a GPU.
    """
    from tvm import s_tir

    layer = recurrent_of(func)
    if layer is None:
        return None
    sch = s_tir.Schedule(func)
    if cpu is None:
        _on_threads(sch)
    else:
        _on_cores(sch, layer, cpu)
    return sch.mod["main"]


def _on_cores(sch: Schedule, layer: Recurrent, cpu: Cpu) -> None:
    walk = layer.steps * len(layer.gates) * layer.hidden**2
    loops = sch.get_loops(sch.get_sblock(LAYER))
    spread(sch, loops, walk * layer.directions * layer.batch, cpu)
    for block in _inside(sch):
        if not _name(sch, block).startswith(PRODUCT):
            continue
        gate, unit, term = sch.get_loops(block)[-3:]
        units = blocks.extent(sch, unit)
        lanes = next((n for n in _LANES if units % n == 0), None)
        unit, lane = sch.split(unit, [None, lanes or units])
        sch.reorder(gate, unit, term, lane)
        if lanes:
            sch.vectorize(lane)
        first = sch.decompose_reduction(block, term)
        if lanes:
            sch.vectorize(sch.get_loops(first)[-1])


def _on_threads(sch: Schedule) -> None:
    sch.bind(sch.fuse(*sch.get_loops(sch.get_sblock(LAYER))), "blockIdx.x")
    _place(sch)
    for block in _inside(sch):
        name = _name(sch, block)
        if name.startswith(PRODUCT):
            _deal_product(sch, block)
        else:
            _deal(sch, sch.get_loops(block)[-2 if name.startswith(ADD) else -1 :])


def _place(sch: Schedule) -> None:
    """Each buffer of a walk into the memory of those who read it."""
    own = {buffer.name for buffer in sch.get(sch.get_sblock(LAYER)).alloc_buffers}
    for block in _inside(sch):
        for i, region in enumerate(sch.get(block).writes):
            name = region.source.name
            if name in own and region.source.scope() == "global":
                sch.set_scope(block, i, "shared.dyn" if name in EXCHANGED else "local")


def _deal(sch: Schedule, loops: list[Loop]) -> Loop:
    """The units, the last loop, to threads; the others of each unit in straight line."""
    *others, unit = loops
    own = ceil_div(blocks.extent(sch, unit), _THREADS)
    thread, own = sch.split(unit, [None, own])
    sch.reorder(thread, *others, own)
    sch.bind(thread, "threadIdx.x")
    blocks.unroll(sch, *others, own)
    return thread


def _deal_product(sch: Schedule, block: Block) -> None:
    """A thread sums for its units, all gates of a unit side by side."""
    gate, unit, term = sch.get_loops(block)[-3:]
    loads = max(n for n in range(1, _LOADS + 1) if blocks.extent(sch, term) % n == 0)
    term, few = sch.split(term, [None, loads])
    sch.reorder(term, few, gate, unit)
    thread = _deal(sch, [few, gate, unit])
    sch.reorder(thread, term)
    first = sch.decompose_reduction(block, term)
    blocks.unroll(sch, *blocks.loops_inside(sch, first, thread))


def _inside(sch: Schedule) -> list[Block]:
    return list(sch.get_child_blocks(sch.get_sblock(LAYER)))


def _name(sch: Schedule, block: Block) -> str:
    return str(sch.get(block).name_hint)
