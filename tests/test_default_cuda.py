"""Rules for pooling, sums of rows and dense layers, without a GPU: right, inside, in registers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from serial import serialise
from tvm import relax

from tvm_winograd.codegen import build, nvrtc
from tvm_winograd.codegen.cubin import resources
from tvm_winograd.gpu import gpu_for, make_target
from tvm_winograd.passes.apply_schedules import apply_schedules
from tvm_winograd.passes.ragged_pools import legalizations
from tvm_winograd.schedules.rest import default_cuda
from tvm_winograd.schedules.rest.default_cuda import dense_of
from tvm_winograd.truth import reference
from tvm_winograd.truth.evaluate import evaluate
from tvm_winograd.truth.tolerances import TOLERANCES

SM90 = gpu_for("sm_90")
LIMIT = TOLERANCES["float32", "direct", "fma"]
Body = Callable[..., Any]


def average(**options: Any) -> Body:
    return lambda e, x: relax.op.nn.avg_pool2d(x, **options)


def dense(e: Any, x: Any, w: Any, b: Any) -> Any:
    return relax.op.add(e.emit(relax.op.matmul(x, w)), b)


def rectified_dense(e: Any, x: Any, w: Any, b: Any) -> Any:
    return relax.op.nn.relu(e.emit(dense(e, x, w, b)))


def mean(e: Any, x: Any) -> Any:
    return relax.op.mean(x, [2, 3])


def global_average(e: Any, x: Any) -> Any:
    return relax.op.nn.adaptive_avg_pool2d(x, (1, 1))


def adaptive(*size: int, layout: str = "NCHW") -> Body:
    return lambda e, x: relax.op.nn.adaptive_avg_pool2d(x, size, layout)


# name -> (rule, operations, shapes of their inputs); no size is whole unless it must be
CASES: dict[str, tuple[str, Body, list[tuple[int, ...]]]] = {
    "average of windows": ("windows", average(pool_size=(3, 3), padding=(1, 1)), [(2, 5, 9, 7)]),
    "with stride": ("windows", average(pool_size=(2, 2), strides=(2, 2)), [(3, 4, 8, 10)]),
    "global average 7x7": ("rows", global_average, [(3, 67, 7, 7)]),
    "global average of one pixel": ("rows", global_average, [(2, 33, 1, 1)]),
    "windows of two sizes": ("windows", adaptive(5, 3), [(2, 5, 8, 7)]),
    "more windows than rows": ("windows", adaptive(12, 2), [(2, 3, 11, 6)]),
    "windows of two sizes, NHWC": ("windows", adaptive(2, 4, layout="NHWC"), [(2, 5, 9, 3)]),
    "mean of large maps": ("rows", mean, [(2, 3, 31, 33)]),
    "mean of many maps": ("rows", mean, [(16, 97, 11, 11)]),
}
for m, k, n in ((1, 2048, 1000), (2, 96, 10), (3, 320, 9), (5, 1280, 24), (33, 64, 40)):
    shapes = [(m, k), (k, n), (n,)]
    CASES[f"dense {m}x{k}x{n}"] = ("dense", rectified_dense if m == 5 else dense, shapes)


def network(body: Body, shapes: list[tuple[int, ...]]) -> tvm.IRModule:
    """main(inputs) of `body`, before any lowering."""
    builder = relax.BlockBuilder()
    inputs = [relax.Var(f"x{i}", relax.TensorType(s, "float32")) for i, s in enumerate(shapes)]
    with builder.function("main", inputs, attrs={"num_input": len(inputs)}):
        with builder.dataflow():
            out = builder.emit_output(body(builder, *inputs))
        builder.emit_func_output(out)
    return builder.get()


def legalised(mod: tvm.IRModule) -> tvm.IRModule:
    passes = [
        relax.transform.LegalizeOps(legalizations()),
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FuseOps(),
        relax.transform.FuseTIR(),
    ]
    with make_target(SM90):
        return tvm.transform.Sequential(passes)(mod)


def kernels(mod: tvm.IRModule) -> dict[str, Any]:
    """The PrimFuncs of a legalised network by name."""
    found = {g.name_hint: f for g, f in legalised(mod).functions_items()}
    return {name: f for name, f in found.items() if isinstance(f, tvm.tirx.PrimFunc)}


def scheduled(name: str) -> tuple[str, tvm.IRModule, tvm.IRModule]:
    """(rule, main() as it would be built, the network it computes) of a case."""
    rule, body, shapes = CASES[name]
    mod = network(body, shapes)
    (func,) = kernels(mod).values()
    with make_target(SM90):
        found = default_cuda.schedule(func, SM90)
    assert found is not None and found[0] == f"cuda.{rule}", found
    return rule, tvm.IRModule({"main": found[1].with_attr("global_symbol", "main")}), mod


def draw(name: str) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape).astype("float32") for shape in CASES[name][2]]


@pytest.mark.parametrize("name", CASES)
def test_scheduled_program_is_the_operation(name: str) -> None:
    _, done, mod = scheduled(name)
    arrays = draw(name)
    (want,) = evaluate(mod, {}, arrays)
    out = tvm.runtime.tensor(np.full(want.shape, np.nan, "float32"))
    tvm.compile(serialise(done), target="llvm")(*map(tvm.runtime.tensor, arrays), out)
    assert reference.relative_error(out.numpy(), want) <= LIMIT


def between_pages() -> None:
    """Every case on the CPU between unreadable pages; see guarded.py."""
    import tvm_ffi
    from guarded import guarded

    for name in CASES:
        _, done, mod = scheduled(name)
        run = tvm.compile(serialise(done), target="llvm")
        arrays = draw(name)
        (want,) = evaluate(mod, {}, arrays)
        for at_end in (False, True):
            values = [*arrays, np.full(want.shape, np.nan, "float32")]
            placed = [guarded(v, at_end) for v in values]
            run(*(tvm_ffi.from_dlpack(v) for v in placed))
            assert reference.relative_error(placed[-1], want) <= LIMIT, name


def test_no_access_outside_the_arrays() -> None:
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True)
    assert done.returncode == 0, f"exit {done.returncode} (-11: outside)\n{done.stderr[-2000:]}"


@pytest.mark.parametrize("arch", ["sm_75", "sm_90"])
@pytest.mark.parametrize("name", ["global average 7x7", "dense 1x2048x1000", "dense 33x64x40"])
def test_code_keeps_everything_in_registers(name: str, arch: str) -> None:
    rule, done, _ = scheduled(name)
    build.build(done, gpu_for(arch), pipeline="tir")
    made = nvrtc.last_compilation()
    assert made is not None
    (kernel,) = resources(made.binary, made.log)
    assert (kernel.local_bytes, kernel.spill_stores, kernel.spill_loads) == (0, 0, 0)
    assert kernel.static_shared_bytes <= 48 * 1024
    if rule == "rows":
        assert "__shfl_down_sync" in made.source and "__shared__" not in made.source
    else:
        assert made.source.count("__syncthreads") <= 3 and "float4" in made.source


def test_a_dense_layer_at_batch_1_keeps_the_gpu_busy() -> None:
    tile = dense_of(1, 1000, 2048)
    assert tile is not None
    assert (tile.threads, tile.lanes, tile.outputs) == (512, 64, 8)


def test_every_dense_tile_fits_a_block() -> None:
    for m in (*range(1, 40), 64, 128, 256):
        for n in (10, 1000, 1001):
            for k in (512, 1280, 2048, 2050):
                if (tile := dense_of(m, n, k)) is None:
                    continue
                assert tile.threads <= 512 and tile.threads % 32 == 0
                assert k % (tile.kt * tile.kv) == 0 and n % tile.tn == 0
                assert tile.kt * tile.outputs <= 8192
    assert dense_of(512, 1000, 2048) is None and dense_of(1, 10, 7) is None


def test_what_dlight_does_well_stays_with_it() -> None:
    def large_dense(e: Any, x: Any, w: Any) -> Any:
        return relax.op.matmul(x, w)

    def softmax(e: Any, x: Any) -> Any:
        return relax.op.nn.softmax(x)

    def maximum(e: Any, x: Any) -> Any:
        return relax.op.nn.max_pool2d(x, (3, 3), (2, 2), (1, 1))

    def clip(e: Any, x: Any) -> Any:
        return relax.op.clip(x, 0.0, 6.0)

    def centred(e: Any, x: Any) -> Any:
        return relax.op.subtract(x, e.emit(relax.op.mean(x, [2, 3], keepdims=True)))

    maps = [(2, 8, 9, 9)]
    for body, shapes in (
        (large_dense, [(512, 64), (64, 64)]),
        (softmax, [(4, 1000)]),
        (maximum, maps),
        (clip, maps),
    ):
        for func in kernels(network(body, shapes)).values():
            assert default_cuda.schedule(func, SM90) is None
    found = [default_cuda.schedule(f, SM90) for f in kernels(network(centred, maps)).values()]
    assert sum(one is not None for one in found) <= 1  # the mean; never what reads it again


@pytest.mark.parametrize("rows", [1, 4])
def test_a_product_with_rows_is_one_of_sums_if_each_is_read_once(rows: int) -> None:
    from tvm import te

    x, w = te.placeholder((rows, 64)), te.placeholder((40, 64))
    k = te.reduce_axis((0, 64))
    y = te.compute((rows, 40), lambda i, j: te.sum(x[i, k] * w[j, k], k))
    found = default_cuda.schedule(te.create_prim_func([x, w, y]), SM90)
    assert (found is not None and found[0] == "cuda.rows") == (rows == 1)


def test_the_report_names_the_rule() -> None:
    mod = legalised(network(global_average, [(1, 64, 7, 7)]))
    _, report = apply_schedules(mod, {}, SM90)
    (entry,) = report
    assert (entry["schedule"], entry["source"]) == ("cuda.rows", "default")


if __name__ == "__main__":
    between_pages()
