"""From a tile-shaped tensor to the output: a guarded scatter, which TE cannot express.

In TE the last block would count output elements, and a schedule would have to derive the tiles
it needs from `k < K` and from divisions of p: TVM then shrinks or bloats every buffer of a ragged
convolution. Here the last block counts tiles, so its regions are exact, and the guard stands in
its body, where no analysis looks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import s_tir, tirx
from tvm.ir import Range

from ..shapes import ConvSpec, Epilogue
from .common import Expr, apply_epilogue

# index of the tile-shaped tensor -> (n, k, h, w), conditions under which they exist
Place = Callable[[Sequence[Expr]], tuple[tuple[Expr, Expr, Expr, Expr], list[Expr]]]


def scatter(func: Expr, spec: ConvSpec, epilogue: Epilogue, place: Place, name: str) -> Expr:
    """The PrimFunc `func` with a last block `name` that stores its last argument, tile-shaped.

    Args:
        func: main(X, U[, B][, R], Y) of te.create_prim_func; Y becomes an inner buffer.
    Returns:
        main(X, U[, B][, R], O); the block has the attribute "layout".
    """
    *inputs, tiles = func.params
    out = tirx.decl_buffer(spec.output_shape, spec.out_dtype, "O")
    store = _store(tiles, out, list(inputs[2:]), spec, epilogue, place, name)
    root = func.body.block
    before = list(root.body.seq) if isinstance(root.body, tirx.SeqStmt) else [root.body]
    block = s_tir.SBlock(
        [], [], [], "root", tirx.SeqStmt([*before, store]), None, [*root.alloc_buffers, tiles]
    )
    body = s_tir.SBlockRealize([], True, block)
    return tirx.PrimFunc([*inputs, out], body, func.ret_type, func.attrs)


def _store(
    tiles: Expr,
    out: Expr,
    extra: list[Expr],
    spec: ConvSpec,
    epilogue: Epilogue,
    place: Place,
    name: str,
) -> Expr:
    """One loop and one block variable a dimension of `tiles`, around the guarded store."""
    shape = [int(extent) for extent in tiles.ty.shape]
    axes = [tirx.Var(f"v_{i}", "int32") for i in range(len(shape))]
    loops = [tirx.Var(f"i_{i}", "int32") for i in range(len(shape))]
    (n, k, h, w), guards = place(axes)
    at = {"N": n, "C": k, "H": h, "W": w}
    index = [at[axis] for axis in spec.layout]
    value = apply_epilogue(tiles[tuple(axes)], spec, epilogue, extra, k, index)
    body = tirx.BufferStore(out, value, index)
    if guards:
        body = tirx.IfThenElse(tirx.all(*guards), body, None)
    reads = [_point(tiles, axes)]
    if epilogue.bias:
        reads.append(_point(extra[0], [k]))
    if epilogue.residual:
        reads.append(_point(extra[-1], index))
    variables = [
        tirx.IterVar(Range(0, extent), axis, tirx.IterVar.DataPar)
        for extent, axis in zip(shape, axes, strict=True)
    ]
    attrs = {"layout": spec.layout}
    block = s_tir.SBlock(variables, reads, [_point(out, index)], name, body, annotations=attrs)
    nest = s_tir.SBlockRealize(loops, True, block)
    for loop, extent in zip(reversed(loops), reversed(shape), strict=True):
        nest = tirx.For(loop, 0, extent, tirx.ForKind.SERIAL, nest)
    return nest


def _point(buffer: Expr, index: Sequence[Expr]) -> Expr:
    return tirx.BufferRegion(buffer, [Range.from_min_extent(i, 1) for i in index])
