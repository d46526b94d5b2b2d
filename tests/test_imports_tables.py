"""Hostile and huge tables, journals and weight files."""

from __future__ import annotations

import json
import time
import zipfile

import numpy as np
import pytest

from tvm_winograd import ConvSpec, Epilogue
from tvm_winograd.cli import main
from tvm_winograd.errors import LogError, ModelError
from tvm_winograd.frontend.weights import load_weights
from tvm_winograd.tables import lookup, store
from tvm_winograd.tuning import check, journal

SPEC = ConvSpec(1, 8, 9, 9, 8, padding=(1, 1, 1, 1))
HEADER = ",".join(lookup.COLUMNS)
DEEP = "[" * 100_000


def line(**changes: str) -> str:
    cells = {
        "gpu": "NVIDIA H200", "arch": "sm_90", "spec": SPEC.key(), "epilogue": Epilogue().key(),
        "algorithm": "direct", "kernel": "direct", "config": "{}", "us": "5", "origin": "measured",
    } | changes  # fmt: skip
    return ",".join('"' + cells.get(n, "").replace('"', '""') + '"' for n in lookup.COLUMNS)


HOSTILE = {
    "arch is a path": {"arch": "../../../tmp/x"},
    "arch is a hidden path": {"arch": ".."},
    "arch is absolute": {"arch": "/tmp/x"},
    "gpu is endless": {"gpu": "x" * 5000},
    "deep": {"config": DEEP},
    "deep in a config": {"config": '{"a": ' + DEEP},
    "a list as a value": {"config": '{"a": [1]}'},
    "negative time": {"us": "-3"},
    "no time": {"us": "nan"},
    "negative error": {"error": "-1"},
    "trials": {"trials": "-5"},
    "many digits": {"spec": SPEC.key().replace("9", "9" * 5000)},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_line_costs_that_line_only(name, tmp_path, capsys) -> None:
    source = tmp_path / "in.csv"
    source.write_text("\n".join([HEADER, line(**HOSTILE[name]), line()]) + "\n")
    rows, complaints = lookup.read_table(source)
    assert len(rows) == len(complaints) == 1 and len(complaints[0]) < 500
    folder = tmp_path / "a" / "out"
    assert main(["logs", "merge", str(folder), str(source)]) == 0
    written = {p.relative_to(tmp_path) for p in tmp_path.rglob("*.csv")}
    assert {str(p) for p in written} == {"in.csv", "a/out/sm_90/nvidia-h200.csv"}


def test_a_path_is_never_made_of_a_key(tmp_path) -> None:
    with pytest.raises(LogError, match="letters, digits"):
        store.table_path(tmp_path, "../x", "gpu")


@pytest.mark.parametrize(
    "text",
    [DEEP, '{"a":' + DEEP, "[]", '{"spec": 3}', '{"us": "x"}', '{"us": -1.0}', '{"spec": "x"}'],
)
def test_a_hostile_line_of_a_journal(text, tmp_path) -> None:
    good = {
        "spec": SPEC.key(), "epilogue": Epilogue().key(), "kernel": "k", "config": "{}",
        "program": "p", "status": "ok", "us": 2.0,
    }  # fmt: skip
    bad = text if text.startswith(("[", '{"a"')) else json.dumps(good | json.loads(text))
    path = tmp_path / "x.jsonl"
    path.write_text(f"{bad}\n{json.dumps(good)}\n")
    found, complaints = journal.read(path)
    assert len(found) == len(complaints) == 1


def test_many_rows_are_found_quickly() -> None:
    rows = lookup.Rows(
        lookup.Row("g", "sm_90", ConvSpec(n, 8, 9 + i, 9, 8).key(), Epilogue().key(), "k", {}, 1.0)
        for i in range(5000)
        for n in (1, 2, 4)
    )
    wanted = [ConvSpec(n, 8, 9 + i, 9, 8) for i in range(200) for n in (1, 8)]
    first = lookup.lookup(rows, wanted[0], Epilogue())  # makes the index
    start = time.perf_counter()
    for spec in wanted:
        exact = lookup.lookup(rows, spec, Epilogue())
        near = lookup.lookup_nearest(rows, spec, Epilogue())
        assert len(exact) == (spec.n == 1) and len(near) == 2
    assert first and time.perf_counter() - start < 2


def test_prune_looks_at_rows_without_the_lock(tmp_path, monkeypatch) -> None:
    path = tmp_path / "sm_90" / "nvidia-h200.csv"
    path.parent.mkdir()
    path.write_text("\n".join([HEADER, line(), line(us="9", kernel="other")]) + "\n")
    added = lookup.read_table(path)[0][0]

    def problem_of(row):
        late = lookup.replace(added, kernel="late")
        store.merge(tmp_path, [late])  # would wait for a minute
        return "bad" if row.kernel == "other" else None

    monkeypatch.setattr(check, "problem_of", problem_of)
    kept, dropped, _ = check.prune(tmp_path)
    assert (kept, dropped) == (2, 1)
    assert {row.kernel for row in lookup.read_table(path)[0]} == {"direct", "late"}


@pytest.mark.parametrize("name", ["w", "other"])
def test_an_npz_bomb_is_not_inflated(name, tmp_path) -> None:
    path = tmp_path / "w.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open(f"{name}.npy", "w") as member:
            np.lib.format.write_array_header_1_0(
                member, {"descr": "<f4", "fortran_order": False, "shape": (2**27,)}
            )
            for _ in range(512):
                member.write(bytes(2**20))
    assert path.stat().st_size < 2**20
    start = time.perf_counter()
    with pytest.raises(ModelError, match="bytes"):
        load_weights(path, {"w": (3, 4)})
    assert time.perf_counter() - start < 0.2
