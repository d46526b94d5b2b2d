"""Stock TVM's convolution: scheduled and compiled for sm_90 here, its records as files."""

from __future__ import annotations

import numpy as np
import pytest
from convs import FULL, expected, poison, random_arrays

from tvm_winograd.bench.conv.provider import PEER_LIMIT, Bench
from tvm_winograd.bench.conv.stock import (
    Dlight,
    MetaSchedule,
    Record,
    StockBuild,
    plain_trace,
    prim_func,
    read_record,
    record_path,
    scheduled,
    write_record,
)
from tvm_winograd.codegen import build
from tvm_winograd.errors import InputError, UnsupportedError
from tvm_winograd.gpu import gpu_for
from tvm_winograd.shapes import ConvSpec, Epilogue
from tvm_winograd.truth import reference
from tvm_winograd.truth.tolerances import tolerance

SPEC = ConvSpec(n=2, c=8, h=9, w=7, k=16, stride=2, padding=(1, 0, 1, 2))
GPU = gpu_for("sm_90")


def bench(folder=None) -> Bench:
    return Bench(None, GPU, "NVIDIA H200", (), folder)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "epilogue", [Epilogue(), FULL, Epilogue(relu6=True)], ids=lambda e: e.key()
)
def test_the_convolution_is_right(epilogue):
    import tvm

    arrays = random_arrays(SPEC, epilogue)
    out = tvm.runtime.tensor(poison(SPEC.output_shape, "float32"))
    tvm.compile(prim_func(SPEC, epilogue), target="llvm")(*map(tvm.runtime.tensor, arrays), out)
    error = reference.relative_error(out.numpy(), expected(SPEC, epilogue, arrays))
    assert error <= tolerance(SPEC, PEER_LIMIT)
    assert np.isfinite(out.numpy()).all()


def test_dlight_compiles(tmp_path):
    (variant,) = Dlight(bench()).variants(SPEC, FULL)
    assert variant.build() == StockBuild(SPEC, FULL, GPU, None)
    variant.build()(tmp_path)
    build.check_device_code(tmp_path / "conv.so", cuda=True)
    assert (tmp_path / "schedule.txt").read_text().startswith("dlight.")


def recorded(folder) -> Record:
    """A schedule with a decision, as MetaSchedule's traces have them."""
    from tvm import s_tir

    sch = s_tir.Schedule(prim_func(SPEC, Epilogue()))
    sch.compute_inline("pad_temp")
    n, k, y, x, *_ = sch.get_loops("conv2d_nchw")
    outer, inner = sch.split(k, sch.sample_perfect_tile(k, 2, 16, decision=[4, 4]))
    sch.bind(sch.fuse(n, outer), "blockIdx.x")
    sch.bind(sch.fuse(inner, y, x), "threadIdx.x")
    record = Record(
        SPEC.key(), "none", "sm_90", "NVIDIA H200", 12.5, 64, "0.27", plain_trace(sch.trace)
    )
    write_record(folder, record)
    return record


def test_a_record_gives_the_schedule_back(tmp_path):
    record = recorded(tmp_path)
    assert read_record(tmp_path, SPEC, Epilogue()) == record
    provider = MetaSchedule(bench(tmp_path))
    assert provider.available() is None
    (variant,) = provider.variants(SPEC, Epilogue())
    assert variant.build() == StockBuild(SPEC, Epilogue(), GPU, tmp_path)
    func, how = scheduled(SPEC, Epilogue(), GPU, tmp_path)
    assert how == "64 trials, 12.5 us in the search" and "blockIdx.x" in func.script()
    build.build(func, GPU, pipeline="tir")


def test_what_has_no_record_is_refused(tmp_path):
    recorded(tmp_path)
    with pytest.raises(UnsupportedError, match=r"no record .*stock_metaschedule.py --out"):
        scheduled(SPEC, FULL, GPU, tmp_path)
    with pytest.raises(UnsupportedError, match="record is of sm_90"):
        scheduled(SPEC, Epilogue(), gpu_for("sm_86"), tmp_path)
    record_path(tmp_path, SPEC, Epilogue()).write_text('{"spec": 1}')
    with pytest.raises(InputError, match="no record of MetaSchedule"):
        read_record(tmp_path, SPEC, Epilogue())
    assert "--stock" in str(MetaSchedule(bench()).available())
    assert "no such folder" in str(MetaSchedule(bench(tmp_path / "no")).available())


def test_groups_are_refused():
    with pytest.raises(UnsupportedError, match="groups"):
        prim_func(ConvSpec(1, 8, 8, 8, 8, groups=2), Epilogue())
