"""A fixed sample of ONNX's backend tests; all of them: python tests/onnx_backend.py."""

from __future__ import annotations

import pytest
from onnx_backend import KINDS, Row, cases, read_rows, run_case
from operators_page import PAGE, page

ROWS = {row.name: row for row in read_rows()}
ONE_IN = 40  # of the tests that are run


def sample() -> list[str]:
    """Every so many of those that are right, by name, and some that are refused."""
    right = sorted(name for name, row in ROWS.items() if row.verdict == "right")
    refused = sorted(name for name, row in ROWS.items() if row.verdict == "refused")
    return [*right[::ONE_IN], *refused[:: 2 * ONE_IN]]


@pytest.fixture(scope="module")
def known() -> dict:
    return {case.name: case for case in cases()}


@pytest.mark.parametrize("name", sample())
def test_as_its_row_says(name: str, known: dict) -> None:
    assert run_case(known[name]).verdict == ROWS[name].verdict


def test_no_row_is_missing_wrong_or_of_no_use(known: dict) -> None:
    assert set(known) == set(ROWS) and len(ROWS) == 2024
    assert {row.kind for row in ROWS.values()} == set(KINDS)
    assert {row.verdict for row in ROWS.values()} == {"right", "refused", "left out"}
    assert all(row.detail for row in ROWS.values() if row.verdict != "right")


def test_the_page_is_that_of_the_rows() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(list(ROWS.values()))


def test_a_wrong_result_is_noticed(known: dict, monkeypatch) -> None:
    case = known["test_relu"]
    wrong = type(case)(**{**vars(case), "outputs": [case.outputs[0] + 1]})
    row: Row = run_case(wrong)
    assert row.verdict == "wrong" and "instead of" in row.detail
