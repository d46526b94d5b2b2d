"""tvm-winograd verify ARTIFACT|MODEL"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..choose.options import Options
from ..deploy.manifest import batches_of
from ..errors import InputError
from ..truth.tolerances import NETWORK_FLOOR
from .common import print_json, print_table, progress_printer
from .options import MODEL, add_options, given, is_given, value_of

if TYPE_CHECKING:
    from ..check.report import Report
    from ..codegen.artifact import Artifact


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("subject", metavar="ARTIFACT|MODEL")
    add_options(parser, Options, only=(*MODEL, "buckets", "math"))
    parser.add_argument("--model", help="what a foreign artifact was compiled from")
    parser.add_argument("--layers", action="store_true", help="print every convolution")
    text = "exit with 0 where nothing is wrong, though something could not be compared"
    parser.add_argument("--allow-uncompared", action="store_true", help=text)


def run(args: argparse.Namespace) -> int:
    from ..check.verify import load_source, verify, verify_buckets
    from ..codegen.artifact import Artifact
    from ..compiler import compile as compile_model
    from ..frontend import load_model

    progress, options = progress_printer(), given(args, Options)
    with tempfile.TemporaryDirectory(prefix="tvm_winograd-") as folder:
        if Path(args.subject).is_dir():
            artifact = Artifact(args.subject)
            _check_options(args, artifact)
            model = load_source(artifact, args.model, options.weights, options.trust)
        else:
            if args.model:
                raise InputError(f"there is no artifact {args.subject}; --model goes with one")
            batch = options.batch
            largest = batch[1] if isinstance(batch, tuple) else batch
            model = load_model(
                args.subject,
                batch=largest,
                weights=options.weights,
                trust=options.trust,
                input_shapes=options.input_shapes,
            )
            artifact = compile_model(
                model,
                output=Path(folder, "artifact"),
                options=options.but(ptx=False),
                progress=progress,
            )
        if artifact.manifest["batch"] is None:
            reports = [verify(artifact, model, progress=progress)]
        else:
            reports = verify_buckets(artifact, model, options.buckets, progress=progress)
    verdicts = {report.verdict for report in reports}
    verdict = next(v for v in ("failed", "not compared", "ok") if v in verdicts)
    if not args.json:
        for report in reports:
            _print(report, args.layers)
    elif artifact.manifest["batch"] is None:
        print_json(reports[0].as_dict())
    else:
        buckets = [report.as_dict() for report in reports]
        print_json({"ok": verdict == "ok", "verdict": verdict, "buckets": buckets})
    return 0 if verdict == "ok" or (verdict != "failed" and args.allow_uncompared) else 1


def _check_options(args: argparse.Namespace, artifact: Artifact) -> None:
    """--target, --arch and --batch are for models; of an artifact they may only repeat its own.
    --buckets names those to verify."""
    if is_given(args, "math"):
        raise InputError(
            f"--math goes with a model: {args.subject} is compiled already, and `math` stands "
            "at each layer of its manifest"
        )
    manifest = artifact.manifest
    batches = batches_of(manifest)
    if is_given(args, "buckets") and not batches:
        raise InputError(f"--buckets: {args.subject} was compiled for one batch; leave it out")
    fixed = manifest["inputs"][0]["shape"][0]
    made = {
        "target": manifest["target"],
        "batch": _text((batches.low, batches.high) if batches else fixed),
        "arch": ",".join(
            dict.fromkeys(m["arch"] for m in manifest["modules"] if m["kind"] == "cubin")
        ),
    }
    for name, value in made.items():
        if is_given(args, name) and (asked := _text(value_of(args, name))) != value:
            raise InputError(
                f"--{name} {asked}, but {args.subject} was compiled for {name} {value}; "
                "leave it out, or name the model instead of the artifact"
            )


def _text(value: Any) -> str:
    """As on the command line."""
    return "-".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _print(report: Report, every_layer: bool) -> None:
    shown = [r for r in report.layers if every_layer or not r.ok]
    rows = [
        [r.name, r.algorithm, f"{r.error:.2e}", f"{r.limit:.0e}", "ok" if r.ok else "FAILED"]
        for r in shown
    ]
    if rows:
        columns = ["layer", "algorithm", "relative error", "limit", ""]
        print_table("convolutions alone", columns, rows)
    good = sum(r.ok for r in report.layers)
    worst = max(report.layers, key=lambda r: r.error, default=None)
    what = f", worst {worst.error:.2e} ({worst.name})" if worst else ""
    print(f"{report.module}: {good} of {len(report.layers)} convolutions ok{what}")
    if report.padding is not None:
        print(f"a batch that is not full {'is the same' if report.padding else 'DIFFERS'}")
    floor = "" if report.peer_error >= NETWORK_FLOOR else f", counted as {NETWORK_FLOOR:.2e}"
    print(
        f"network: {report.error:.2e} from float64; {report.peer}: {report.peer_error:.2e}{floor}; "
        f"ratio {report.ratio:.2f} (limit {report.ratio_limit:.0f})"
    )
    if report.imported is not None:
        limit = report.import_limit
        verdict = "" if report.imported <= limit else ": the model was IMPORTED WRONGLY"
        print(f"its own framework: {report.imported:.2e} (limit {limit:.0e}){verdict}")
    for what in report.not_compared:
        print(f"not compared: {what}")
    print({"failed": "FAILED", "not compared": "NOT COMPARED"}.get(report.verdict, "ok"))
