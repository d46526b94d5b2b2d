"""Sums of one term become that term, before dlight schedules a function.

dlight inlines what follows into a reduction that runs over one element (a 1x1 filter on one
channel, the mean of one pixel), both into its start and into its step: a bias is added twice.
"""

from __future__ import annotations

from typing import Any

from tvm import ir, s_tir, tirx

from ..ir.rebuild import block_with
from ..ir.tvm_027 import rewritten

_SPATIAL, _REDUCE = tirx.IterVar.DataPar, tirx.IterVar.CommReduce


def drop_unit_sums(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func` without blocks that start a sum and add a single term to it."""
    return func.with_body(rewritten(func.body, s_tir.SBlock, _plain))


def _plain(block: Any) -> Any:
    """The block without its start, if that is added to once."""
    stores = (block.init, block.body)
    if not all(isinstance(store, tirx.BufferStore) for store in stores):
        return block  # not a reduction, or one of pairs (argmax)
    sums = [v for v in block.iter_vars if int(v.iter_type) == _REDUCE]
    if any(not isinstance(v.dom.extent, tirx.IntImm) or int(v.dom.extent) > 1 for v in sums):
        return block
    start, step = stores

    def first(load: Any) -> Any:
        return start.value if load.source.same_as(start.buffer) else load

    value = rewritten(step.value, ir.TensorLoad, first)
    variables = [tirx.IterVar(v.dom, v.var, _SPATIAL, v.thread_tag) for v in block.iter_vars]
    body = tirx.BufferStore(step.buffer, value, step.indices)
    return block_with(block, iter_vars=variables, body=body, init=None)
