"""tvm-winograd run ARTIFACT INPUT"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

import numpy as np

from .common import print_json, print_table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("artifact", metavar="ARTIFACT")
    parser.add_argument("input", metavar="INPUT", help="an image or a float32 .npy file")
    parser.add_argument("--top", type=int, default=5, help="classes to show (default 5)")
    parser.add_argument("--repeats", type=int, default=10, help="timed runs (default 10)")
    parser.add_argument("--device", help="cpu, cuda or cuda:1 (default: the artifact's)")


def run(args: argparse.Namespace) -> int:
    from ..deploy import runtime
    from ..deploy.manifest import batches_of
    from ..errors import InputError
    from .preprocess import read_input

    if args.top < 1:
        raise InputError(f"--top {args.top}: at least 1 is needed")
    runner = runtime.load(args.artifact, args.device)
    tensor = runner.manifest["inputs"][0]
    batches = batches_of(runner.manifest)
    x = read_input(args.input, tuple(tensor["shape"]), runner.manifest["preprocess"], batches)
    if isinstance(runner, runtime.BatchRunner):
        runner = runner.at(x.shape[0])
    output = runner.run(x)
    seconds = runner.time(x, repeats=args.repeats)
    first = output[0] if isinstance(output, tuple) else output
    report = {
        "module": runner.module["name"],
        "device": str(runner.device),
        "batch": x.shape[0],
        "median_ms": statistics.median(seconds) * 1e3,
        "min_ms": min(seconds) * 1e3,
        "output_shape": list(first.shape),
        "top": top_classes(first, args.top, runner.labels),
    }
    if args.json:
        print_json(report)
    else:
        _print(report)
    return 0


def top_classes(
    logits: np.ndarray, count: int, labels: list[str] | None = None
) -> list[dict[str, Any]]:
    """The most likely classes of the first image; empty unless `logits` are (n, classes) floats."""
    if logits.ndim != 2 or logits.dtype.kind != "f":
        return []
    shifted = np.exp(logits[0].astype("float64") - logits[0].max())
    probability = shifted / shifted.sum()
    best = np.argsort(-probability, kind="stable")[:count]
    named = labels if labels and len(labels) == len(probability) else None
    return [
        {
            "class": int(i),
            "label": named[i] if named else None,
            "logit": float(logits[0, i]),
            "probability": float(probability[i]),
        }
        for i in best
    ]


def _print(report: dict[str, Any]) -> None:
    if report["top"]:
        rows = [
            [t["class"], t["label"] or "", f"{t['logit']:.4f}", f"{t['probability']:.4f}"]
            for t in report["top"]
        ]
        print_table("first image", ["class", "label", "logit", "probability"], rows)
    else:
        print(f"output of shape {report['output_shape']}")
    print(
        f"{report['median_ms']:.2f} ms median, {report['min_ms']:.2f} ms best, "
        f"batch {report['batch']}, module {report['module']} on {report['device']}"
    )
