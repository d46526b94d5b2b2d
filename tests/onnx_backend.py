"""Runs ONNX's own backend tests (onnx.backend.test) on the compiler and writes a table of rows.

    python tests/onnx_backend.py [--only TEXT] [--rows tests/data/onnx_backend.csv]

A row says whether a test's numbers are right, whether it was refused (and whether the refusal names
the operator or value), or wrong. Rows that exist are kept: a run that was stopped is continued.
A test of `node` passes everything as a graph input, even axes and shapes. Inputs of dtypes that
networks do not take become constants here; where that is refused, so do all that are not float32,
then all but one. The column `constants` says which. Tests of kind `real` need files from the
network and are left out.
"""

from __future__ import annotations

import argparse
import csv
import multiprocessing
import re
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests

from tvm_winograd.frontend.model import DTYPES

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")
ROWS = Path(__file__).with_name("data") / "onnx_backend.csv"
SECONDS = 120  # per test
# what only TVM's own texts hold; a refusal must not
RAW = re.compile(
    r"Check failed|\bR\.|\bT\.|tirx|relax|Traceback|InternalError|IRModule|0x[0-9a-f]{6}"
)


@dataclass(frozen=True)
class Row:
    """One test. `verdict` is right, refused, left out, wrong or raw (an error of no use)."""

    name: str
    kind: str
    opset: int
    operators: str  # of the model, with a blank between
    verdict: str
    constants: str  # inputs made constants: "", "other dtypes", "not float32", "all but one"
    detail: str


@dataclass(frozen=True)
class Case:
    """A model with the inputs and the outputs of one data set, by name."""

    name: str
    kind: str
    model: onnx.ModelProto
    inputs: dict[str, Any]
    outputs: list[Any]
    rtol: float
    atol: float


def cases(kinds: Sequence[str] = KINDS) -> Iterator[Case]:
    """Every test of onnx.backend.test, its first data set."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # onnx makes its numbers with overflows on purpose
        for kind in kinds:
            for test in load_model_tests(kind=kind):
                yield _case(test)


def run_case(case: Case) -> Row:
    """Compile a test's model, run it on its inputs, and compare."""
    taken = [n for n, v in case.inputs.items() if getattr(v, "dtype", None) in DTYPES]
    if not taken:
        return _row(case, "left out", "", f"no input that is taken: {_kinds(case.inputs)}")
    if odd := [n for n, v in case.inputs.items() if not isinstance(v, np.ndarray)]:
        return _row(case, "left out", "", f"input {odd[0]!r} is no tensor")
    rows = []
    for label, inputs in _inputs(case, taken):
        row = _attempt(case, set(case.inputs) - set(inputs), label)
        if row.verdict != "refused":
            return row
        rows.append(row)
    return rows[0]


def _inputs(case: Case, taken: list[str]) -> Iterator[tuple[str, list[str]]]:
    """(what is constant, the inputs that stay), from all that can stay to one."""
    yield "" if len(taken) == len(case.inputs) else "other dtypes", taken
    floats = [n for n in taken if case.inputs[n].dtype == np.float32]
    if 0 < len(floats) < len(taken):
        yield "not float32", floats
    if len(first := (floats or taken)[:1]) < len(taken):
        yield "all but one", first


def _attempt(case: Case, constant: set[str], label: str) -> Row:
    import tvm_winograd

    inputs = [v for n, v in case.inputs.items() if n not in constant]
    model = _with_constants(case, constant)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx")
        onnx.save(model, path)
        try:
            artifact = tvm_winograd.compile(str(path), output=Path(folder, "artifact"))
            got = artifact.load().run(*inputs)
        except tvm_winograd.TvmWinogradError as error:
            return _row(case, _kind_of_refusal(case, str(error)), label, str(error))
        except Exception as error:
            return _row(case, "raw", label, f"{type(error).__name__}: {error}")
    got = list(got) if isinstance(got, tuple) else [got]
    wrong = _difference(case, got)
    return _row(case, "wrong" if wrong else "right", label, wrong)


def _kind_of_refusal(case: Case, text: str) -> str:
    """A refusal names an operator, an input or an output of the model, in our own words."""
    graph = case.model.graph
    names = {n.op_type for n in graph.node} | {v.name for v in (*graph.input, *graph.output)}
    named = any(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) for name in names)
    named = named or re.search(r"\w+ \(node '", text) is not None  # of a function written out
    return "refused" if named and not RAW.search(text) else "raw"


def _difference(case: Case, got: list[np.ndarray]) -> str:
    if len(got) != len(case.outputs):
        return f"{len(got)} outputs instead of {len(case.outputs)}"
    for have, want in zip(got, case.outputs, strict=True):
        if have.shape != want.shape or have.dtype != want.dtype:
            return f"{have.dtype}{have.shape} instead of {want.dtype}{want.shape}"
        if not np.allclose(have, want, case.rtol, max(case.atol, 1e-5), equal_nan=True):
            return f"{have.ravel()[:4]} instead of {want.ravel()[:4]}"
    return ""


def _case(test: Any) -> Case:
    if test.model is not None:
        model, (inputs, outputs) = test.model, test.data_sets[0]
    else:
        folder = Path(test.model_dir)
        model = onnx.load(folder / "model.onnx")
        inputs, outputs = (
            _tensors(folder / "test_data_set_0", kind, getattr(model.graph, f"{kind}put"))
            for kind in ("in", "out")
        )
    known = {i.name for i in model.graph.initializer}
    names = [i.name for i in model.graph.input if i.name not in known]
    named = dict(zip(names, inputs, strict=False))
    return Case(test.name, test.kind, model, named, list(outputs), test.rtol, test.atol)


def _tensors(folder: Path, kind: str, values: Sequence[Any]) -> list[Any]:
    found = []
    for i in range(len(values)):
        file = folder / f"{kind}put_{i}.pb"
        if file.is_file():
            tensor = onnx.TensorProto()
            tensor.ParseFromString(file.read_bytes())
            found.append(numpy_helper.to_array(tensor))
    return found


def _with_constants(case: Case, constant: set[str]) -> onnx.ModelProto:
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    kept = [i for i in model.graph.input if i.name not in constant]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    values = [numpy_helper.from_array(np.asarray(case.inputs[n]), n) for n in sorted(constant)]
    model.graph.initializer.extend(values)
    model.ir_version = max(model.ir_version, 4)  # before, initializers had to be inputs too
    return model


def _kinds(inputs: dict[str, Any]) -> str:
    kinds = {str(getattr(v, "dtype", type(v).__name__)) for v in inputs.values()}
    return ", ".join(sorted(kinds)) or "none at all"


def _row(case: Case, verdict: str, constants: str, detail: str) -> Row:
    operators = " ".join(sorted({n.op_type for n in case.model.graph.node}))
    opsets = [o.version for o in case.model.opset_import if o.domain in ("", "ai.onnx")]
    detail = " ".join(detail.replace(tempfile.gettempdir(), "").split())
    detail = re.sub(r"/tmp\w+/", "", detail)[:200]
    opset = opsets[0] if opsets else 0
    return Row(case.name, case.kind, opset, operators, verdict, constants, detail)


def read_rows(path: Path = ROWS) -> list[Row]:
    """The rows of a table, none where there is no file."""
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as stream:
        return [Row(**{**row, "opset": int(row["opset"])}) for row in csv.DictReader(stream)]


def write_rows(rows: Sequence[Row], path: Path) -> None:
    """Replace a table."""
    new = path.with_suffix(".new")
    with new.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, [f.name for f in fields(Row)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(row) for row in sorted(rows, key=lambda r: (r.kind, r.name)))
    new.replace(path)


def _worker(pipe: Any) -> None:
    """Runs the tests whose numbers come in, in order, and sends rows back."""
    known = list(cases())
    pipe.send(None)
    while True:
        try:
            index = pipe.recv()
        except EOFError:  # the caller is done
            return
        try:
            row = run_case(known[index])
        except Exception as error:
            row = _row(known[index], "raw", "", f"{type(error).__name__}: {error}")
        pipe.send(row)


class _Worker:
    """A process that is replaced when a test kills it or takes too long."""

    def __init__(self) -> None:
        self.pipe, theirs = multiprocessing.get_context("spawn").Pipe()
        self.process = multiprocessing.get_context("spawn").Process(
            target=_worker, args=(theirs,), daemon=True
        )
        self.process.start()
        theirs.close()
        self.pipe.recv()

    def run(self, index: int, case: Case) -> tuple[Row, bool]:
        """The row of a test, and whether the process lives on."""
        self.pipe.send(index)
        if not self.pipe.poll(SECONDS):
            self.process.kill()
            return _row(case, "raw", "", f"not done after {SECONDS} s"), False
        try:
            return self.pipe.recv(), True
        except EOFError:
            self.process.join()
            return _row(case, "raw", "", f"the process died ({self.process.exitcode})"), False


def run_all(path: Path, only: str = "", again: Sequence[str] = ()) -> list[Row]:
    """Every test without a row in `path`, or with one of the verdicts `again`; all rows."""
    rows = {row.name: row for row in read_rows(path) if row.verdict not in again}
    worker = None
    for index, case in enumerate(cases()):
        if case.name in rows or only not in case.name:
            continue
        worker = worker or _Worker()
        rows[case.name], alive = worker.run(index, case)
        worker = worker if alive else None
        print(rows[case.name].verdict, case.name, rows[case.name].detail[:100], flush=True)
        if len(rows) % 25 == 0:
            write_rows(list(rows.values()), path)
    write_rows(list(rows.values()), path)
    return list(rows.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=Path, default=ROWS)
    parser.add_argument("--only", default="", help="part of the tests' names")
    parser.add_argument("--again", nargs="*", default=(), help="verdicts to run once more")
    args = parser.parse_args()
    rows = run_all(args.rows, args.only, args.again)
    for verdict in sorted({row.verdict for row in rows}):
        print(verdict, sum(row.verdict == verdict for row in rows))


if __name__ == "__main__":
    main()
