"""Writes docs/operators.md: what each frontend takes, from the rows of ONNX's backend tests and the
code's tables.

    python tests/operators_page.py
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from onnx_backend import KINDS, Row, read_rows

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "operators.md"
ZOO = ROOT / "benchmarks" / "results" / "cpu-2026-12-01-zoo.json"  # of benchmarks/zoo.py
_HEAD = """# Operators

This page is made by `python tests/operators_page.py`; change the code or the rows, not the page.

A model is taken whole or refused with the operator and node named. Before anything is made of it an
ONNX file is checked (`onnx.checker`, windows, pads, versions), every dynamic size becomes a number,
and functions that are not converted are written out as the standard defines them. Then each node's
attributes must all be read, and its outputs must have the shape and dtype that ONNX infers, or that
torch has noted in an exported program.

## ONNX

onnx.backend.test holds {total} tests of the kinds {kinds}; those of kind `real` need files from the
network and are left out. `python tests/onnx_backend.py` runs them all and writes
`tests/data/onnx_backend.csv`; CI repeats a fixed sample (`tests/test_onnx_backend.py`).

| right | refused by name | left out | wrong | an error of no use |
|---|---|---|---|---|
| {right} | {refused} | {left} | {wrong} | {raw} |

Left out: {reasons}. Inputs of dtypes that networks do not take become constants in these tests;
where that is refused, so do all that are not float32, then all but one.

Right: an operator in at least one test of its own (`node`), with how many of them.

{operators}

Refused in every test of their own:

{refusals}

## Networks

`python benchmarks/zoo.py` compiles networks of torchvision and timm in three forms, and .onnx files
of wheels on PyPI, for this CPU, and compares every output: of networks with torch in float64 (a
relative error of 1e-4, or ten times torch's own in float32), of files with onnxruntime.

| form | right | wrong | refused | failed | not exported by torch |
|---|---|---|---|---|---|
{networks}

Not right: {others}

## torch.export

Programs are decomposed to torch's core operators first; a composite operator needs its parts only.
These are converted by this package, the rest of the list by TVM's importer:

{ours}

{theirs}
"""


def page(rows: Sequence[Row]) -> str:
    """The text of docs/operators.md."""
    counts = {v: sum(r.verdict == v for r in rows) for v in ("right", "refused", "wrong", "raw")}
    left = [row for row in rows if row.verdict == "left out"]
    ours, theirs = _torch_operators()
    good, bad = _by_operator(rows)
    return _HEAD.format(
        total=len(rows),
        kinds=", ".join(f"`{kind}`" for kind in KINDS),
        left=len(left),
        reasons=_reasons(left),
        operators=_sentence(f"{name} ({done} of {n})" for name, (done, n) in good.items()),
        refusals=_sentence(bad),
        ours=_sentence(f"`{name}`" for name in ours),
        theirs=_sentence(f"`{name}`" for name in theirs),
        networks="\n".join(_networks()),
        others=_sentence(
            f"{r['name']} ({r['form']}: {r['status']})" for r in _zoo() if r["status"] != "right"
        ),
        **counts,
    )


def _by_operator(rows: Iterable[Row]) -> tuple[dict[str, tuple[int, int]], list[str]]:
    """(operators of one-node tests with how many are right, those with none)."""
    found: dict[str, list[bool]] = {}
    for row in rows:
        if row.kind == "node" and row.verdict != "left out" and " " not in row.operators:
            found.setdefault(row.operators, []).append(row.verdict == "right")
    good = {name: (sum(all_), len(all_)) for name, all_ in sorted(found.items()) if any(all_)}
    return good, sorted(set(found) - set(good))


def _reasons(rows: Sequence[Row]) -> str:
    """How many tests are left out for each kind of input."""
    kinds: dict[str, int] = {}
    for row in rows:
        kinds[row.detail] = kinds.get(row.detail, 0) + 1
    return "; ".join(f"{text} ({n})" for text, n in sorted(kinds.items(), key=lambda k: -k[1]))


def _torch_operators() -> tuple[list[str], list[str]]:
    """aten operators that this package converts, and those that TVM's importer does."""
    from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

    from tvm_winograd.frontend.torch_indexing import CONVERT
    from tvm_winograd.frontend.torch_ops import convert_map
    from tvm_winograd.frontend.torch_recurrent import CONVERT as RECURRENT
    from tvm_winograd.frontend.torch_sorting import CONVERT as SORTING

    ours = {*convert_map(), *CONVERT, *RECURRENT, *SORTING}
    return sorted(ours), sorted(set(ExportedProgramImporter().create_convert_map()) - ours)


def _zoo() -> list[dict[str, Any]]:
    return list(json.loads(ZOO.read_text(encoding="utf-8"))["rows"])


def _networks() -> Iterator[str]:
    """A line of the table for each form."""
    names = {"pt2": "torch.export", "dynamo": "ONNX, dynamo", "torchscript": "ONNX, TorchScript"}
    count = Counter((row["form"], row["status"]) for row in _zoo())
    for form, name in (names | {"file": "files of wheels"}).items():
        cells = [count[form, s] for s in ("right", "wrong", "refused", "failed", "not exported")]
        yield f"| {name} | {' | '.join(map(str, cells))} |"


def _sentence(names: Iterable[str]) -> str:
    return (", ".join(names) or "none") + "."


if __name__ == "__main__":
    PAGE.write_text(page(read_rows()), encoding="utf-8")
