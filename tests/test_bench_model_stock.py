"""Stock TVM's network: compiled for sm_90 here, scheduled from a database."""

from __future__ import annotations

import pytest
import tvm
from tiny_network import SUBJECT, bench, tiny

from tvm_winograd.bench.network import network, stock
from tvm_winograd.bench.network.stock import MetaSchedule
from tvm_winograd.codegen import build
from tvm_winograd.errors import UnsupportedError
from tvm_winograd.gpu import gpu_for, host_cpu, make_target


@pytest.fixture(autouse=True)
def loaded(monkeypatch):
    """Every subject is the small network."""
    monkeypatch.setattr(network.Subject, "load", lambda self: tiny())


@pytest.fixture(scope="module")
def model():
    return tiny()


def test_stock_tvm_compiles_for_a_gpu_too(model, tmp_path):
    executable, planned, how = stock.compiled(model, gpu_for("sm_90"))
    assert planned > 0 and how == "dlight"
    build.export(executable, tmp_path / "network.so")  # refuses what holds no machine code


def test_vectors_are_constants_of_stock_tvm(model):
    kept = stock.kept_arguments(model.params)
    assert "conv1.weight" in kept and "bn1.bias" not in kept
    main_of = stock.legalized(model, host_cpu())["main"]
    assert len(main_of.params) == 2  # the images and the tuple of what is kept


def test_a_database_gives_its_schedules(model, tmp_path):
    """One function as MetaSchedule's search would leave it, the others by dlight."""
    from tvm import s_tir
    from tvm.s_tir import meta_schedule as ms

    gpu = gpu_for("sm_90")
    with pytest.raises(UnsupportedError, match=r"no database .*tiny-b2-sm_90"):
        stock.open_database(tmp_path, model, "sm_90")
    folder = stock.database_folder(tmp_path, model, "sm_90")
    folder.mkdir()
    func = stock.legalized(model, gpu)["transpose"]
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    sch = s_tir.Schedule(mod)
    loop = sch.fuse(*sch.get_loops("T_transpose"))
    sch.bind(loop, "threadIdx.x")
    made = ms.database.JSONDatabase(work_dir=str(folder))
    target, secs = make_target(gpu), [1e-3]
    record = ms.database.TuningRecord(sch.trace, made.commit_workload(mod), secs, target, [])
    made.commit_tuning_record(record)
    database = stock.open_database(tmp_path, model, "sm_90")
    scheduled, tuned = stock.with_database(stock.legalized(model, gpu), target, database)
    assert tuned == 1 and "blockIdx" not in scheduled["transpose"].script()


def test_no_database_no_measurement(model, tmp_path):
    assert "--stock DIR" in MetaSchedule(bench()).available()
    assert "no such folder" in MetaSchedule(bench(tmp_path / "no")).available()
    provider = MetaSchedule(bench(tmp_path))
    assert provider.available() is None
    with pytest.raises(UnsupportedError, match=r"stock_metaschedule_model.py --out .* --batch 2"):
        provider.build(SUBJECT)(tmp_path)
