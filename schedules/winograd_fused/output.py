"""The fused kernel's end: M from the threads that own it through shared memory to those that store.

A round takes `bk / rounds` filters. In shared memory their M lies as

    stores=4    (E, tk/4, bk/tk, 4, tp/4, bp/tp, 4)            cut down to the filters of the round
    otherwise   (E, tk/4, 4, bk/tk, rows of 32 banks)          `relaid`: what a group of lanes that
                stores together writes lies in one row, rows apart by a pad or turned against each
                other (`compact`)

where a tile's last two bits decide what goes together (openCNN's figures of the output buffer):
two neighbours, that one thread loads at once (loads=2), or two of every second (tiles=2, loads=1),
so that neighbours meet in the registers of one thread behind two loads of one word.
"""

from __future__ import annotations

from typing import Any

from tvm_winograd.te.common import mixed_radix, product

from ..base import blocks
from ..base.blocks import Block, Loop, Schedule
from ..base.stages import stage
from .config import FusedTile


def own(sch: Schedule, config: FusedTile, e: Loop, k0: Loop, p0: Loop, inner: list[Loop]) -> Loop:
    """Bind the owners of M, (eps, nu) to warps and the rest to lanes, around `inner`.

    Returns the loop over a thread's own (eps, nu).
    """
    warp, e_lane, e_own = sch.split(e, [config.warps, config.lane_e, config.points])
    bits = blocks.interleave(sch, config.lanes, e=e_lane, k=k0, p=p0)
    sch.reorder(warp, *bits, e_own, *inner)
    blocks.bind_warps(sch, warp, sch.fuse(*bits))
    return e_own


def split_rounds(
    sch: Schedule, config: FusedTile, k1: Loop, k2: Loop
) -> tuple[list[Loop], Loop, Loop]:
    """(the loops over rounds, what is left of k1 and k2)."""
    outer = config.tk // config.fragment
    k1_round, k1 = sch.split(k1, [min(config.rounds, outer), None])
    if config.rounds <= outer:
        return [k1_round], k1, k2
    k2_round, k2 = sch.split(k2, [config.rounds // outer, None])
    return [k1_round, k2_round], k1, k2


@stage
def bind(sch: Schedule, config: FusedTile, layout: str) -> tuple[Loop, Loop, Loop]:
    """Output tiles to blocks, rounds and threads; returns (p block, k round, turn).

    Lanes run along what is contiguous in memory: tiles, or filters in NHWC.

    loops: kb k1 k0 k2 pb p1 p0 p2 i j of O -> grid (pb, kb); leaves (p block, round, turn)
    """
    block = sch.get_sblock("wino_O")
    k_block, k1, k0, k2, p_block, p1, p0, p2, i, j = sch.get_loops(block)
    rounds, k1, k2 = split_rounds(sch, config, k1, k2)
    mine = []
    if config.tiles > 1:
        p2, tile = sch.split(p2, [None, config.tiles])
        mine = [tile]
    k, p = [k1, k0, k2], [p1, p0, p2]
    if config.beside > 1:  # filters whose words fill a row of banks together
        k0_high, k0 = sch.split(k0, [config.beside, None])
        k = [k1, k2, k0, k0_high]
    inner = p + k if layout == "NHWC" else k + p
    sch.reorder(k_block, p_block, *rounds, *inner, *mine, i, j)
    k_round = sch.fuse(*rounds)
    sch.bind(p_block, "blockIdx.x")
    sch.bind(k_block, "blockIdx.y")
    turn = blocks.deal(sch, inner, config.warps)
    blocks.unroll(sch, k_round)
    _store(sch, config, block, layout, mine, i, j)
    return p_block, k_round, turn


def _store(
    sch: Schedule,
    config: FusedTile,
    block: Block,
    layout: str,
    mine: list[Loop],
    i: Loop,
    j: Loop,
) -> None:
    """A thread's elements of the output, neighbours in memory at once where none is guarded."""
    shape = [int(extent) for extent in sch.get(block).writes[0].source.ty.shape]
    width = shape[-1]
    if mine and layout == "CHWN":
        _, h, w, n = shape
        sch.reorder(i, j, *mine)
        blocks.unroll(sch, i, j)
        whole = h % config.m == 0 and w % config.m == 0 and n % blocks.extent(sch, mine[0]) == 0
        (sch.vectorize if whole else sch.unroll)(mine[0])
        return
    if mine and layout == "NCHW" and config.m == 2 and width % 4 == 0:
        sch.reorder(i, *mine, j)
        j = sch.fuse(*mine, j)
    else:
        blocks.unroll(sch, *mine)
    blocks.unroll(sch, i)
    (sch.vectorize if layout == "NCHW" and width % config.m == 0 else sch.unroll)(j)


@stage
def transform(sch: Schedule, config: FusedTile, layout: str, k_round: Loop, turn: Loop) -> None:
    """A^T M A in registers; M comes out of shared memory, where its owners put it each round.

    loops: round gets M's copy (warp, lane, own e k1 k2 p1 p2); turn gets Y and Z; leaves none
    """
    for name in ("wino_Y", "wino_Z"):
        block = sch.get_sblock(name)
        loops = blocks.move(sch, block, turn)
        sch.set_scope(block, 0, "local")
        blocks.unroll(sch, *loops)
    z = sch.get_sblock("wino_Z")
    shared = sch.cache_read(z, 0, "shared.dyn")
    if config.loads > 1:
        *outer, words = blocks.move(sch, sch.cache_read(z, 0, "local"), turn)
        blocks.unroll(sch, *outer)
        sch.vectorize(words)
    e, *part, kb, k1, k0, k2, pb, p1, p0, p2 = blocks.move(sch, shared, k_round)
    tiles, vector = _stored(sch, config, p1, p2)
    e = own(sch, config, e, k0, p0, [*part, kb, pb, k1, k2, *tiles, vector])
    blocks.unroll(sch, *part, kb, pb, e, k1, k2, *tiles)
    (sch.vectorize if config.stores > 1 else sch.unroll)(vector)
    _arrange(sch, config, layout, shared, len(part))
    if config.m_buffers > 1:
        blocks.pipeline(sch, k_round, [0, 1], [0, 1])


def _stored(sch: Schedule, config: FusedTile, p1: Loop, p2: Loop) -> tuple[list[Loop], Loop]:
    """(loops over the stores of a thread's tiles, the loop over the words of one)."""
    if config.every_second:
        p2, other = sch.split(p2, [2, 2])
        return [other, p1], p2
    if config.stores < config.fragment:
        other, p2 = sch.split(p2, [None, config.stores])
        return [other, p1], p2
    return [p1], p2


def _arrange(sch: Schedule, config: FusedTile, layout: str, shared: Block, part: int) -> None:
    """The layout of M in shared memory. `part`: dimensions between e and the block of filters."""
    if config.relaid:
        sch.transform_layout(
            shared, ("write", 0), _relaid(config, part), assume_injective_transform=True
        )
        axis, row, pad = 4 + part, config.bp * config.beside, 0 if config.compact else config.skew
    elif layout == "NHWC":  # no two lanes of a half warp read from one bank
        axis, row, pad = 4 + part, config.bp, 4
    else:  # no two lanes of those that store together write to one bank
        axis, row, pad = 3 + part, config.fragment * config.bp, config.skew
    if pad:
        sch.storage_align(shared, 0, axis, min(row, blocks.WARP), pad)


def _relaid(config: FusedTile, part: int) -> Any:
    """Index map of M: (e, .., kb, k1, k0, k2, pb, p1, p0, p2) to rows of a group's stores."""
    low, stores = config.lane_k // config.beside, config.stores
    tiles = [config.tp // config.fragment, config.lane_p]

    def place(*index: Any) -> list[Any]:
        head, (kb, k1, k0, k2, pb, p1, p0, p2) = index[: 1 + part], index[1 + part :]
        if config.every_second:
            other, word = p2 % 2, p2 // 2
        else:
            other, word = p2 // stores, p2 % stores
        outside, extents, inside = [other], [config.beside, *tiles], [k0 // low, p1, p0]
        if config.beside == 1:
            outside, extents, inside = [], [config.fragment // stores, *tiles], [other, p1, p0]
        slot = mixed_radix(extents, inside)
        if config.compact:
            slot = (slot + config.skew // stores * (k0 % low)) % product(extents)
        return [*head, kb, k1, k2, k0 % low, pb, *outside, slot, word]

    return place
