"""Writing tables: what merging keeps, and that nothing ever leaves half a table behind."""

import errno
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from tvm_winograd import ConvSpec, TvmWinogradError
from tvm_winograd.tables import lookup as logs
from tvm_winograd.tables import store as log_store
from tvm_winograd.tables.lookup import Row

SPEC = ConvSpec(8, 64, 56, 56, 64)


def row(us=10.0, n=8, **more):
    values = {"gpu": "NVIDIA H200", "arch": "sm_90", "epilogue": "none", "kernel": "k", **more}
    return Row(spec=replace(SPEC, n=n).key(), config={"a": 1}, us=us, **values)


def table(folder):
    rows, complaints = logs.read_folder(folder, "sm_90")
    assert not complaints
    return rows


def test_the_best_row_of_each_key_stays(tmp_path):
    wrong = row(1.0, algorithm="winograd-f2", error=1e-2)
    moved = row(2.0, origin="transferred")
    log_store.merge(tmp_path, [row(10), row(20, n=1), wrong])
    log_store.merge(tmp_path, [row(11), row(19, n=1), row(5, gpu="NVIDIA H100"), moved, wrong])
    assert [(r.gpu, r.us) for r in table(tmp_path)] == [
        ("NVIDIA H100", 5.0),
        ("NVIDIA H200", 19.0),
        ("NVIDIA H200", 10.0),
    ]
    assert [p.name for p in logs.tables(tmp_path)] == ["nvidia-h100.csv", "nvidia-h200.csv"]


def test_a_wrong_row_gives_way_even_to_a_slower_one(tmp_path):
    log_store.merge(tmp_path, [row(1.0, algorithm="winograd-f2", error=1e-2)])
    log_store.merge(tmp_path, [row(9.0, algorithm="winograd-f2", error=1e-7)])
    assert [r.us for r in table(tmp_path)] == [9.0]


def test_a_damaged_line_is_reported_and_the_rest_kept(tmp_path):
    log_store.merge(tmp_path, [row()])
    (path,) = logs.tables(tmp_path)
    path.write_text(path.read_text() + "NVIDIA H200,sm_90,n8c6")
    complaints = log_store.merge(tmp_path, [row(n=1)])
    assert len(complaints) == 1 and "csv:3" in complaints[0]
    assert len(table(tmp_path)) == 2


WRITER = """
import sys
from pathlib import Path
from tvm_winograd.tables import store as log_store
from tvm_winograd.tables.lookup import Row
first = int(sys.argv[2])
for n in range(first, first + 25):
    key = f"n{n}c8h8w8k8r3s3_st1_p1.1.1.1_d1_g1_float32_NCHW"
    row = Row("NVIDIA H200", "sm_90", key, "none", "k", {"n": n}, float(n))
    log_store.merge(Path(sys.argv[1]), [row])
"""


def test_three_writers_at_once_lose_nothing(tmp_path):
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    writers = [subprocess.Popen([*command, str(first)]) for first in (1, 101, 201)]
    while any(w.poll() is None for w in writers):
        for path in logs.tables(tmp_path):  # a reader beside them never meets half a table
            assert not logs.read_table(path)[1]
    assert [w.returncode for w in writers] == [0, 0, 0]
    assert len(table(tmp_path)) == 75


@pytest.mark.parametrize("call", ["replace", "fsync"])
def test_a_failed_write_leaves_the_old_table(tmp_path, monkeypatch, call):
    log_store.merge(tmp_path, [row()])

    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        with pytest.raises(TvmWinogradError, match=r"No space left.*as it was"):
            log_store.merge(tmp_path, [row(5.0)])
    assert [r.us for r in table(tmp_path)] == [10.0]
    assert sorted(p.name for p in (tmp_path / "sm_90").iterdir()) == [
        ".nvidia-h200.csv.lock",
        "nvidia-h200.csv",
    ]


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 64 KB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk(small_disk):
    log_store.merge(small_disk, [row(n=n) for n in range(1, 100)])
    before = table(small_disk)
    with pytest.raises(TvmWinogradError, match="No space left"):
        log_store.merge(small_disk, [row(n=n) for n in range(100, 1000)])
    assert table(small_disk) == before


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(TvmWinogradError, match="cannot be written"):
        log_store.merge(tmp_path / "file", [row()])


def test_a_lock_that_stays_taken(tmp_path, monkeypatch):
    monkeypatch.setattr(log_store, "_LOCK_SECONDS", 0.2)
    path = log_store.table_path(tmp_path, "sm_90", "NVIDIA H200")
    with log_store.locked(path):
        code = (
            "import sys; from pathlib import Path; from tvm_winograd.tables import store as s\n"
            "s._LOCK_SECONDS = 0.2\n"
            "with s.locked(Path(sys.argv[1])): pass"
        )
        run = subprocess.run(
            [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False
        )
    assert run.returncode and "another process has held its lock" in run.stderr
