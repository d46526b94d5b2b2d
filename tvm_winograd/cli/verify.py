"""tvm-winograd verify ARTIFACT|MODEL"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from .common import add_model_options, print_json, print_table, progress_printer

if TYPE_CHECKING:
    from ..verify import Report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("subject", metavar="ARTIFACT|MODEL")
    add_model_options(parser)
    parser.add_argument("--model", help="what a foreign artifact was compiled from")
    parser.add_argument("--layers", action="store_true", help="print every convolution")


def run(args: argparse.Namespace) -> int:
    from ..artifact import Artifact
    from ..compiler import compile as compile_model
    from ..frontend import load_model
    from ..verify import load_source, verify

    progress = progress_printer()
    with tempfile.TemporaryDirectory(prefix="tvm_winograd-") as folder:
        if Path(args.subject).is_dir():
            artifact = Artifact(args.subject)
            model = load_source(artifact, args.model, args.weights)
        else:
            model = load_model(args.subject, batch=args.batch, weights=args.weights)
            artifact = compile_model(
                model,
                target=args.target,
                arch=args.arch,
                output=Path(folder, "artifact"),
                ptx=False,
                progress=progress,
            )
        report = verify(artifact, model, progress=progress)
    if args.json:
        print_json(report.as_dict())
    else:
        _print(report, args.layers)
    return 0 if report.ok else 1


def _print(report: Report, every_layer: bool) -> None:
    shown = [r for r in report.layers if every_layer or not r.ok]
    rows = [
        [r.name, r.algorithm, f"{r.error:.2e}", f"{r.limit:.0e}", "ok" if r.ok else "FAILED"]
        for r in shown
    ]
    if rows:
        columns = ["layer", "algorithm", "relative error", "limit", ""]
        print_table("convolutions alone", columns, rows)
    worst = max(report.layers, key=lambda r: r.error)
    good = sum(r.ok for r in report.layers)
    print(f"{good} of {len(report.layers)} convolutions ok, worst {worst.error:.2e} ({worst.name})")
    print(
        f"network: {report.error:.2e} from float64; {report.peer}: {report.peer_error:.2e}; "
        f"ratio {report.error / report.peer_error:.2f}"
    )
    print("ok" if report.ok else "FAILED")
