"""Tables against today's code: MetaSchedule records made from them, `logs check` and the like."""

import json
import re
from dataclasses import replace

import pytest
import tvm_ffi
from tvm import s_tir
from tvm.s_tir import meta_schedule as ms

from tvm_winograd import ConvSpec, Epilogue, TvmWinogradError, cli
from tvm_winograd.gpu import gpu_for, host_cpu, make_target
from tvm_winograd.schedules import KERNELS
from tvm_winograd.schedules.base.kernel import config_dict
from tvm_winograd.tables import lookup as logs
from tvm_winograd.tables import store as log_store
from tvm_winograd.tables.lookup import Row
from tvm_winograd.tuning.check import problem_of
from tvm_winograd.tuning.records import write_database
from tvm_winograd.tuning.spaces import workload_of

SPEC, EPILOGUE = ConvSpec(8, 64, 28, 28, 64), Epilogue(True, True, True)
H200 = gpu_for("sm_90")
DEPTHWISE = ConvSpec(8, 64, 28, 28, 64, groups=64)  # for kernels that do not take SPEC
# The trace of a function that comes with its threads is empty: nothing to replay.
OURS = [k for k in KERNELS if k.schedule is not None and k.math == "fma"]


def hardware(kernel):
    return H200 if kernel.target == "cuda" else host_cpu()


def row(of=OURS[0], **more):
    where = hardware(of)
    values = {
        "gpu": "NVIDIA H200" if of.target == "cuda" else where.cpu,
        "arch": where.arch,
        "spec": SPEC.key(),
        "epilogue": EPILOGUE.key(),
        "kernel": of.name,
        "config": config_dict(of.configs(SPEC, where)[0]),
        "us": 10.0,
        "algorithm": of.algorithm,
        "error": 3e-7,
    }
    return Row(**{**values, **more})


@pytest.mark.parametrize("kernel", OURS, ids=lambda k: k.name)
def test_a_record_replays_to_what_the_compiler_schedules(tmp_path, kernel):
    where = hardware(kernel)
    spec = SPEC if kernel.supports(SPEC, EPILOGUE, where) is None else DEPTHWISE
    config = kernel.configs(spec, where)[-1]
    tuned = row(kernel, spec=spec.key(), config=config_dict(config))
    write_database(tmp_path, [tuned], where)
    database = ms.database.JSONDatabase(work_dir=str(tmp_path))  # from its files
    program = workload_of(kernel, config, spec, EPILOGUE)
    (record,) = database.get_top_k(database.commit_workload(program), 1)
    assert float(record.run_secs[0]) == pytest.approx(1e-5)
    replayed = s_tir.Schedule(program)
    record.trace.apply_to_schedule(replayed, remove_postproc=False)
    direct = s_tir.Schedule(program)
    with make_target(where):
        kernel.schedule(direct, config, where)
    assert tvm_ffi.structural_equal(replayed.mod, direct.mod)
    assert not tvm_ffi.structural_equal(replayed.mod, program)


def test_rows_of_other_architectures_make_no_records(tmp_path):
    database = write_database(tmp_path, [row(), row(arch="sm_80")], H200)
    assert len(database) == 1
    with pytest.raises(TvmWinogradError, match=r"there are winograd-f2-fused"):
        write_database(tmp_path, [row(kernel="gone")], H200)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({}, None),
        ({"error": None}, None),
        ({"kernel": "gone"}, "there are winograd-f2-fused"),
        ({"config": {"warp_drive": 9}}, "no field warp_drive"),
        ({"config": {"bc": 4096}}, "shared memory|unroll|registers"),
        ({"spec": replace(SPEC, stride=2).key()}, "stride 1, got 2"),
        ({"error": 1e-3}, "beyond 1e-06"),
        ({"algorithm": "winograd-f4"}, "is winograd-f2"),
        ({"arch": "sm_35"}, "supported are sm_75"),
        ({"arch": "sm_75"}, "bytes of shared memory|cp.async"),
        ({"gpu": "mock"}, "no measurement"),
    ],
)
def test_problems_of_a_row(change, why):
    found = problem_of(row(**change))
    assert found is None if why is None else re.search(why, found)


@pytest.fixture
def folder(tmp_path):
    """A good row, a better one of another layer, one of a lost kernel, a damaged line."""
    other = replace(SPEC, n=1).key()
    log_store.merge(tmp_path, [row(), row(spec=other, us=5.0), row(kernel="gone")])
    (path,) = logs.tables(tmp_path)
    path.write_text(path.read_text() + "NVIDIA H200,sm_9")
    return tmp_path


def document(capsys, *arguments):
    code = cli.main(["logs", *map(str, arguments), "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_logs_ls_and_show(folder, capsys):
    code, got = document(capsys, "ls", folder)
    (table,) = got["tables"]
    assert code == 0 and table["table"] == "sm_90/nvidia-h200.csv"
    assert (table["rows"], table["measured"], len(table["complaints"])) == (3, 3, 1)
    code, got = document(capsys, "show", folder, "--spec", "n1c64")
    assert code == 0 and [r["us"] for r in got["rows"]] == [5.0]
    assert cli.main(["logs", "ls", str(folder)]) == cli.main(["logs", "show", str(folder)]) == 0
    assert "winograd-f2-fused" in capsys.readouterr().out


def test_logs_check_then_prune(folder, capsys):
    code, got = document(capsys, "check", folder)
    assert code == 1 and got["rows"] == 3 and len(got["problems"]) == 2
    assert "line left out" in got["problems"][0] and "'gone'" in got["problems"][1]
    code, got = document(capsys, "prune", folder)
    assert code == 0 and (got["kept"], got["dropped"], len(got["complaints"])) == (2, 1, 1)
    code, got = document(capsys, "check", folder)
    assert code == 0 and got == {"rows": 2, "ok": True, "problems": []}


def test_a_row_in_another_architectures_folder(folder, capsys):
    (folder / "sm_90").rename(folder / "sm_80")
    _, got = document(capsys, "check", folder)
    assert "a row for sm_90: move it" in " ".join(got["problems"])


def test_logs_merge(folder, tmp_path, capsys):
    more = tmp_path / "more"
    log_store.merge(more, [row(us=9.0), row(spec=replace(SPEC, n=1).key(), us=6.0), row(gpu="X")])
    code, got = document(capsys, "merge", folder, more)
    assert code == 0 and (got["read"], got["new"], got["replaced"]) == (3, 1, 1)
    rows, complaints = logs.read_folder(folder)
    assert not complaints and sorted(r.us for r in rows) == [5.0, 9.0, 10.0, 10.0]


def test_shipped_rows_build():
    """`logs check --build` for all takes minutes; here three rows, spread over the tables."""
    rows, complaints = logs.read_folder(logs.shipped_folder())
    assert not complaints
    for shipped in rows[:: max(1, len(rows) // 3)][:3]:
        assert problem_of(shipped, compile=True) is None


def test_logs_of_the_package_and_of_nowhere(capsys):
    assert cli.main(["logs", "check"]) == 0  # every shipped row fits today's code
    assert cli.main(["logs", "ls", "no-such-folder"]) == 2
    assert "is no folder" in capsys.readouterr().err
    assert cli.main(["logs", "merge", "a", "no-such-folder"]) == 2
