"""Networks of torchvision and timm in three forms, and files of wheels: compiled and compared.

    python benchmarks/zoo.py --rows zoo.json [--only TEXT] [--wheels FOLDER] [--jobs 2]

Needs torchvision and timm (as fits the installed torch), and onnxruntime for files. Each network
goes through torch.export (.pt2), the ONNX exporter on top of it (dynamo) and the one of TorchScript
where torch itself can export it; it is compiled for this CPU and its outputs are compared with the
framework's in float64. FOLDER has the unpacked wheels; their files are compared with onnxruntime.
A case is a process; rows that exist are kept, so that a stopped run continues.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from common import exit_code, progress
from zoo_networks import FILES, NETWORKS, File, Network, built, image, picture

import tvm_winograd
from tvm_winograd.cli.common import print_table
from tvm_winograd.errors import TvmWinogradError
from tvm_winograd.gpu import host_cpu
from tvm_winograd.measure import provenance
from tvm_winograd.measure.provenance import Provenance
from tvm_winograd.measure.row_files import RowKind, Store
from tvm_winograd.truth.reference import worst_error

FORMS = ("pt2", "dynamo", "torchscript")
LIMIT = 1e-4  # relative error of an output, or TIMES the error of torch in float32
TIMES = 10
SECONDS = 900


@dataclass(frozen=True)
class Row(Provenance):
    """A network in one form. `status`: right, wrong, refused, failed, or not exported."""

    library: str
    name: str
    form: str
    size: str
    status: str
    error: float | None = None  # relative, of the worst output
    theirs: float | None = None  # the framework's own, in float32
    compile_s: float | None = None
    note: str = ""


ROWS = RowKind(Row, lambda row: (row.library, row.name, row.form), lambda new, old: True)
Case = tuple[str, str, str]  # library or "wheel", name, form


def main() -> int | None:
    args = arguments()
    if args.case:
        print(json.dumps(asdict(one(tuple(args.case.split(" ")), args.wheels))))
        return None
    store = Store(ROWS, [Path(args.rows)])
    have = {ROWS.subject(row) for row in store.rows}
    todo = [c for c in cases(args.wheels) if args.only in " ".join(c) and c not in have]
    with ThreadPoolExecutor(args.jobs) as pool:
        for row in pool.map(lambda case: in_process(case, args.wheels), todo):
            progress(f"{row.library} {row.name} {row.form}: {row.status} {row.note[:150]}")
            store.add([row])
    report(store.rows)
    return 1 if any(row.status in ("wrong", "failed") for row in store.rows) else None


def cases(wheels: str | None) -> list[Case]:
    found = [(n.library, n.name, form) for n in NETWORKS for form in FORMS]
    return found + [("wheel", f"{f.package}/{f.path}", "file") for f in FILES if wheels]


def in_process(case: Case, wheels: str | None) -> Row:
    """Runs a case in a process of its own, so that none costs another its memory or its torch."""
    words = [sys.executable, __file__, "--case", " ".join(case), "--rows", "-"]
    words += ["--wheels", wheels] if wheels else []
    try:
        run = subprocess.run(words, capture_output=True, text=True, check=True, timeout=SECONDS)
        return Row(**json.loads(run.stdout.splitlines()[-1]))
    except subprocess.TimeoutExpired:
        note = f"not done after {SECONDS} s"
    except subprocess.CalledProcessError as error:
        note = f"exit {error.returncode}: {error.stderr[-300:]}"
    return Row(*case, "", "failed", note=note)


def one(case: Case, wheels: str | None) -> Row:
    """Runs a case in this process."""
    warnings.simplefilter("ignore")
    shared = asdict(provenance.collect(host_cpu()))
    if case[0] == "wheel":
        (file,) = (f for f in FILES if f"{f.package}/{f.path}" == case[1])
        done = of_file(file, Path(wheels or "."))
    else:
        prepare()
        (network,) = (n for n in NETWORKS if (n.library, n.name) == case[:2])
        done = of_network(network, case[2])
    return Row(*case, **{"size": "", **done, **shared})


def of_network(network: Network, form: str) -> dict[str, Any]:
    import torch

    module, x = built(network), image(network)
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        path = Path(folder, "model.pt2" if form == "pt2" else "model.onnx")
        size = {"size": f"{network.size}x{network.size}"}
        try:
            export(module, torch.from_numpy(x), form, path)
        except Exception as error:  # of torch: anything may be raised
            return {**size, "status": "not exported", "note": _first_line(error)}
        theirs = flat(module(torch.from_numpy(x)))
        want = flat(module.double()(torch.from_numpy(x).double()))
        return {**size, **compared(path, {}, [x], want, worst_error(theirs, want))}


def of_file(file: File, wheels: Path) -> dict[str, Any]:
    import onnxruntime

    (path,) = wheels.rglob(f"{file.package}/{file.path}")
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    shapes = {i.name: shape_of(i, file) for i in session.get_inputs()}
    given = {name: picture(shape, file.largest) for name, shape in shapes.items()}
    want = session.run(None, given)
    size = ", ".join("x".join(map(str, shape)) for shape in shapes.values())
    return {"size": size, **compared(path, file.shapes, list(given.values()), want, 0.0)}


def shape_of(value: Any, file: File) -> tuple[int, ...]:
    """The shape that the table gives, or the file's with a batch of 1."""
    return file.shapes.get(value.name) or (1, *value.shape[1:])


def compared(
    path: Path,
    shapes: Any,
    inputs: list[np.ndarray],
    want: list[np.ndarray],
    theirs: float,
) -> dict[str, Any]:
    """Compiles a file for this CPU, runs it and compares its outputs."""
    start = time.perf_counter()
    try:
        with tempfile.TemporaryDirectory() as folder:
            made = tvm_winograd.compile(path, output=Path(folder, "a"), input_shapes=shapes)
            seconds = round(time.perf_counter() - start, 1)
            outputs = tvm_winograd.load(made.path).run(*inputs)
    except TvmWinogradError as error:
        return {"status": "refused", "note": str(error)}
    except Exception as error:  # a fault of ours, which the row tells
        return {"status": "failed", "note": f"{_first_line(error)} {traceback.format_exc()[-300:]}"}
    got = list(outputs) if isinstance(outputs, list | tuple) else [outputs]
    if [g.shape for g in got] != [w.shape for w in want]:
        return {"status": "wrong", "note": f"shapes {[g.shape for g in got]}"}
    error = worst_error(got, want)
    status = "right" if error <= max(LIMIT, TIMES * theirs) else "wrong"
    return {"status": status, "error": error, "theirs": theirs, "compile_s": seconds}


def export(module: Any, x: Any, form: str, path: Path) -> None:
    """Writes the file as torch does; what torch prints goes to stderr."""
    import torch

    if form == "pt2":
        torch.export.save(torch.export.export(module, (x,)), path)
    else:
        torch.onnx.export(module, (x,), path, dynamo=form == "dynamo", verbose=False)


def flat(outputs: Any) -> list[np.ndarray]:
    """The arrays of a module's outputs, in order: tensors, tuples and dictionaries of them."""
    if isinstance(outputs, dict):
        outputs = list(outputs.values())
    if isinstance(outputs, list | tuple):
        return [array for value in outputs for array in flat(value)]
    return [outputs.numpy()]


def prepare() -> None:
    """Declares the operators of torchvision's library, which need not fit the installed torch."""
    import torch

    library = torch.library.Library("torchvision", "FRAGMENT")
    for name, arguments in (
        ("nms", "Tensor dets, Tensor scores, float iou_threshold"),
        ("qnms", "Tensor dets, Tensor scores, float iou_threshold"),
    ):
        if not hasattr(torch.ops.torchvision, name):
            library.define(f"{name}({arguments}) -> Tensor")
    _KEPT.append(library)


_KEPT: list[Any] = []  # a library's operators end with it


def report(rows: Sequence[Row]) -> None:
    """Prints a line for each form, and each row that is not right."""
    count = Counter((row.form, row.status) for row in rows)
    statuses = list(dict.fromkeys(r.status for r in rows))
    table = [[form, *(str(count[form, s]) for s in statuses)] for form in (*FORMS, "file")]
    print_table("networks", ["form", *statuses], table)
    for row in rows:
        if row.status != "right":
            print(f"{row.status}: {row.library} {row.name} {row.form}: {row.note}"[:400])


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", required=True, help="a .json file that is continued")
    parser.add_argument("--only", default="", help="cases whose library, name or form have this")
    parser.add_argument("--wheels", help="the folder of the unpacked wheels")
    parser.add_argument("--jobs", type=int, default=1, help="cases side by side")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(exit_code(main))
