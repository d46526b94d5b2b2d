"""Rules for what is no convolution on CUDA: pooling windows, sums of rows, dense layers.

TVM's dlight gives a block of threads to each pixel of an average pool, a warp to each 7x7 map, 40
neighbouring bytes of a dense layer's weights to a block at batch 1, and 16 blocks to the whole of a
dense layer at batch 32. Max pooling and what is elementwise it schedules well: no rule takes that.

A rule sees a function as one reduction, what comes before inlined, and one elementwise block
behind it; it takes the function or leaves it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm_winograd.gpu import Gpu
from tvm_winograd.te.common import ceil_div, product

from ..base import blocks
from ..base.blocks import Block, Loop, Schedule
from . import elementwise

_THREADS = 256  # a block of windows or rows
_WINDOW = 64  # elements of a window, at most: a thread has all its loads in flight
_PER_LANE = 8  # elements of a row a lane sums before more lanes share it
_MOST_ROWS = 256  # of a dense layer; more fill the GPU with dlight's 64x64 tiles
_DENSE_THREADS = 512  # a block
_SECTOR = 8  # columns of a block: 32 bytes of each row of the weights
_PARTIALS = 8192  # words of shared memory for partial sums
_STRAIGHT = 1024  # multiply-adds of a thread in straight line, loads of all steps ahead


@dataclass(frozen=True)
class Reduction:
    """The one reduction of a function, in registers, and the block behind it."""

    block: Block
    outer: list[Loop]  # over outputs
    inner: list[Loop]  # over the terms of one
    outputs: int
    terms: int
    store: Block
    followed: bool  # by more than a store


def schedule(func: Any, gpu: Gpu) -> tuple[str, Any] | None:
    """(rule, scheduled PrimFunc), or None if no rule here takes the unscheduled `func`."""
    from tvm import s_tir

    if elementwise.cuda(sch := s_tir.Schedule(func)):
        return "cuda.elementwise", sch.mod["main"]
    if not _has_one_reduction(s_tir.Schedule(func)):
        return None
    func = _with_short_indices(func)
    for name, rule in _RULES.items():
        sch = s_tir.Schedule(func)
        try:
            found = _reduction(sch)
            taken = found is not None and rule(sch, found, gpu)
        except s_tir.ScheduleError:
            continue  # not of the form that the rule takes it for
        if taken:
            return f"cuda.{name}", sch.mod["main"]
    return None


def _has_one_reduction(sch: Schedule) -> bool:
    """Whether shapes are static, indices fit 32 bits, and one block sums in its inner loops."""
    sums = 0
    for block in sch.get_child_blocks(sch.get_sblock("root")):
        node, kinds = sch.get(block), blocks.kinds(sch, block)
        if kinds != sorted(kinds) or not set(kinds) <= {blocks.SPATIAL, blocks.REDUCE}:
            return False
        sums += blocks.REDUCE in kinds
        for region in (*node.reads, *node.writes):
            shape = region.source.ty.shape
            if not all(hasattr(v, "value") for v in shape) or "int" in region.source.dtype:
                return False
            if product([int(v) for v in shape]) >= 2**31:
                return False
    return sums == 1


def _with_short_indices(func: Any) -> Any:
    """`func` with 32-bit indices: Relax counts in 64 bits, which cost twice the instructions."""
    import tvm
    from tvm import tirx

    mod = tvm.IRModule({"main": func})
    return tirx.transform.ForceNarrowIndexToInt32()(mod)["main"]


def _reduction(sch: Schedule) -> Reduction | None:
    """The function's reduction, if what follows it is elementwise."""
    found = sch.get_child_blocks(sch.get_sblock("root"))
    at = next(i for i, b in enumerate(found) if blocks.REDUCE in blocks.kinds(sch, b))
    block, behind = found[at], found[at + 1 :]
    for other in (*found[:at], *behind[:-1]):
        sch.compute_inline(other)
    store = behind[-1] if behind else sch.cache_write(block, 0, "local")
    sch.set_scope(block, 0, "local")
    loops, count = sch.get_loops(block), blocks.kinds(sch, block).count(blocks.SPATIAL)
    outer, inner = loops[:count], loops[count:]
    shapes = [_extents(sch, part) for part in (outer, inner, sch.get_loops(store))]
    if [n for n in shapes[0] if n > 1] != [n for n in shapes[2] if n > 1]:
        return None
    return Reduction(
        block, outer, inner, product(shapes[0]), product(shapes[1]), store, bool(behind)
    )


def _extents(sch: Schedule, loops: list[Loop]) -> list[int]:
    return [blocks.extent(sch, loop) for loop in loops]


def _windows(sch: Schedule, found: Reduction, gpu: Gpu) -> bool:
    """A thread an output, lanes along what is contiguous; its window in straight-line code.

    Where nothing follows (max pooling), dlight does the same, with fewer instructions.
    """
    if found.terms > _WINDOW or not found.followed or len(sch.get(found.block).reads) > 1:
        return False
    block, thread = sch.split(sch.fuse(*found.outer), [None, _THREADS])
    sch.bind(block, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    blocks.unroll(sch, *found.inner)
    sch.reverse_compute_at(found.store, thread)
    sch.decompose_reduction(found.block, found.inner[0])
    return True


def _rows(sch: Schedule, found: Reduction, gpu: Gpu) -> bool:
    """Neighbouring lanes for a row that is contiguous in memory; several rows a warp if short."""
    if not _sums_rows(sch, found):
        return False
    lanes = 8
    while lanes < blocks.WARP and lanes * _PER_LANE < found.terms:
        lanes *= 2
    while lanes < _THREADS and found.outputs * lanes < gpu.sms * _THREADS:
        if lanes * _PER_LANE >= found.terms:
            break
        lanes *= 2
    block, row = sch.split(sch.fuse(*found.outer), [None, _THREADS // lanes])
    turn, lane = sch.split(sch.fuse(*found.inner), [None, lanes])
    sch.bind(block, "blockIdx.x")
    sch.bind(row, "threadIdx.y")
    sch.bind(lane, "threadIdx.x")
    if blocks.extent(sch, turn) <= _WINDOW:
        sch.unroll(turn)
    sch.reverse_compute_at(found.store, row)
    return True


def _sums_rows(sch: Schedule, found: Reduction) -> bool:
    """Whether the terms of an output are the last dimensions of what is read, in their order.

    Each element of one array at least is read once: a product that reads its rows again and again
    is none of these.
    """
    from tvm.sym import Analyzer

    node = sch.get(found.block)
    outer, inner = node.iter_vars[: len(found.outer)], node.iter_vars[len(found.outer) :]
    analyzer = Analyzer()
    for v in outer:
        analyzer.bind(v.var, v.dom)  # one of a single value vanishes from the indices
    sizes = []
    for region in node.reads:
        shape = [int(v) for v in region.source.ty.shape]
        at = [analyzer.simplify(r.min) for r in region.region[-len(inner) :]]
        if shape[-len(inner) :] != _extents(sch, found.inner):
            return False
        if not all(a.same_as(v.var) for a, v in zip(at, inner, strict=True)):
            return False
        sizes.append(product(shape))
    return found.outputs * found.terms in sizes


@dataclass(frozen=True)
class Dense:
    """How a block computes O[m, n] = sum over k of A[m, k] * B[k, n], its threads sharing k."""

    tm: int  # outputs a thread: rows
    tn: int  # and columns, one vector of B
    mt: int  # threads along rows
    nt: int  # and along columns
    kv: int  # neighbouring terms of a thread, one vector of A
    lanes: int  # that add the partial sums of one output

    @property
    def outputs(self) -> int:
        return self.tm * self.mt * self.tn * self.nt

    @property
    def threads(self) -> int:
        return self.outputs * self.lanes

    @property
    def kt(self) -> int:
        """Threads along the sum, each with every kt-th vector: so that `threads` is one number."""
        return self.tm * self.tn * self.lanes


def dense_of(m: int, n: int, k: int) -> Dense | None:
    """The tile for a dense layer of m rows, or None if there is none for its sizes.

    A block reads sectors of 32 bytes of all rows of B, so that 1,000 outputs make 125 blocks. At
    batch 1 ptxas keeps five loads of a thread in flight: 512 threads make that 40 KB an SM.
    """
    if m > _MOST_ROWS:
        return None
    tm = min(m, 4) if m != 3 else 4
    tn, kv = (next(v for v in (4, 2, 1) if size % v == 0) for size in (n, k))
    for lanes in (64, 32, 16, 8, 4, 2, 1):
        tile = Dense(tm, tn, min(8, ceil_div(m, tm)), _SECTOR // tn, kv, lanes)
        fits = tile.threads <= _DENSE_THREADS and tile.kt * tile.outputs <= _PARTIALS
        if fits and k // kv % tile.kt == 0 and tile.threads % blocks.WARP == 0:
            return tile
    return None


def _dense(sch: Schedule, found: Reduction, gpu: Gpu) -> bool:
    """The sum over k in parts by threads of one block, met in shared memory."""
    if not _is_dense(sch, found):
        return False
    m, n = _extents(sch, found.outer)
    tile = dense_of(m, n, found.terms)
    if tile is None:
        return False
    _, part, _ = sch.split(found.inner[0], [None, tile.kt, tile.kv])
    partial = sch.rfactor(part, 0)
    sch.set_scope(partial, 0, "shared")
    block = _add_partials(sch, tile, found)
    _sum_products(sch, tile, partial, block)
    return True


def _is_dense(sch: Schedule, found: Reduction) -> bool:
    """Whether the reduction is O[m, n] = sum of A[m, k] * B[k, n]."""
    node = sch.get(found.block)
    names = [v.var for v in node.iter_vars]
    if len(names) != 3 or len(node.reads) != 2:
        return False
    wanted = [(names[0], names[2]), (names[2], names[1])]
    return all(
        len(region.region) == 2
        and all(r.min.same_as(v) for r, v in zip(region.region, pair, strict=True))
        for region, pair in zip(node.reads, wanted, strict=True)
    )


def _add_partials(sch: Schedule, tile: Dense, found: Reduction) -> Loop:
    """The last sums and what follows, several lanes an output; returns the loop over blocks."""
    i, j, part = sch.get_loops(found.block)
    i, mi = sch.split(i, [None, tile.tm * tile.mt])
    j, ni = sch.split(j, [None, tile.tn * tile.nt])
    sch.reorder(i, j, mi, ni)
    block = sch.fuse(i, j)
    row = sch.fuse(mi, ni)
    turn, lane = sch.split(part, [None, tile.lanes])
    sch.bind(block, "blockIdx.x")
    sch.bind(row, "threadIdx.y")
    sch.bind(lane, "threadIdx.x")
    sch.unroll(turn)
    sch.reverse_compute_at(found.store, row)
    return block


def _sum_products(sch: Schedule, tile: Dense, partial: Block, block: Loop) -> None:
    """A thread's tm x tn partial sums in registers, its operands loaded as vectors."""
    store = sch.cache_write(partial, 0, "local")
    sch.storage_align(store, 0, 0, 8, 4)  # lanes that add neighbouring parts meet other banks
    part, mi, ni = blocks.move(sch, store, block)
    mi, tm = sch.split(mi, [tile.mt, None])
    ni, tn = sch.split(ni, [tile.nt, None])
    sch.reorder(part, mi, ni, tm, tn)
    row, lane = sch.split(sch.fuse(part, mi, ni), [None, tile.lanes])
    sch.bind(row, "threadIdx.y")
    sch.bind(lane, "threadIdx.x")
    sch.unroll(tm)
    sch.vectorize(tn)
    *outer, step, term = blocks.move(sch, partial, lane)
    sch.reorder(step, term, *outer)
    blocks.unroll(sch, term, *outer)
    for operand in (0, 1):
        fragment = sch.cache_read(partial, operand, "local")
        *loops, vector = blocks.move(sch, fragment, step)
        blocks.unroll(sch, *loops)
        sch.vectorize(vector)
    sch.decompose_reduction(partial, step)
    if blocks.extent(sch, step) * tile.tm * tile.tn * tile.kv <= _STRAIGHT:
        sch.unroll(step)


_RULES = {"dense": _dense, "rows": _rows, "windows": _windows}
