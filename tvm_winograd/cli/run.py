"""tvm-winograd run ARTIFACT [INPUT ...]"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from .common import print_json, print_table

_PERCENTILES = (50, 90, 99)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("artifact", metavar="ARTIFACT")
    parser.add_argument(
        "inputs",
        metavar="INPUT",
        nargs="*",
        help="an image or .npy file for each input of the model (default: random values)",
    )
    parser.add_argument("--top", type=int, default=5, help="classes to show (default 5)")
    parser.add_argument("--batch", type=int, help="images of random values, where the batch varies")
    parser.add_argument("--repeats", type=int, default=10, help="timed runs (default 10)")
    parser.add_argument("--warmup", type=int, default=3, help="runs before those (default 3)")
    parser.add_argument("--device", help="cpu, cuda or cuda:1 (default: the artifact's)")
    parser.add_argument(
        "--save", metavar="FILE", help="write the outputs: .npy of the first, or .npz of all"
    )


def run(args: argparse.Namespace) -> int:
    from ..deploy import runtime
    from ..deploy.manifest import batches_of
    from .run_inputs import read_inputs
    from .run_outputs import check_file, save

    _check(args)
    if args.save:
        check_file(args.save)
    runner = runtime.load(args.artifact, args.device)
    manifest = runner.manifest
    inputs = read_inputs(args.inputs, manifest, batches_of(manifest), args.batch, _say)
    if isinstance(runner, runtime.BatchRunner):
        runner = runner.at(inputs[0].shape[0])
    found = runner.run(*inputs)
    outputs = found if isinstance(found, tuple) else (found,)
    if args.save:
        save(args.save, [t["name"] for t in manifest["outputs"]], outputs)
    seconds = runner.time(*inputs, repeats=args.repeats, warmup=args.warmup)
    report = {
        "module": runner.module["name"],
        "device": str(runner.device),
        "batch": inputs[0].shape[0],
        **latency(seconds, inputs[0].shape[0]),
        "output_shape": list(outputs[0].shape),
        "outputs": _described(manifest["outputs"], outputs),
        "top": top_classes(outputs[0], args.top, runner.labels),
    }
    print_json(report) if args.json else _print(report)
    return 0


def _check(args: argparse.Namespace) -> None:
    from ..errors import InputError

    for name, least in (("top", 1), ("repeats", 1), ("warmup", 0), ("batch", 1)):
        value = getattr(args, name)
        if value is not None and value < least:
            raise InputError(f"--{name} {value}: at least {least} is needed")


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def latency(seconds: Sequence[float], batch: int) -> dict[str, Any]:
    """Milliseconds a run and images a second, of runs one after the other."""
    times = np.asarray(seconds) * 1e3
    ranks = {f"p{p}_ms": float(np.percentile(times, p)) for p in _PERCENTILES}
    return {
        "median_ms": float(np.median(times)),
        "min_ms": float(times.min()),
        "max_ms": float(times.max()),
        **ranks,
        "repeats": len(times),
        "images_per_s": float(batch * 1e3 * len(times) / times.sum()),
    }


def _described(
    declared: Sequence[dict[str, Any]], outputs: Sequence[np.ndarray]
) -> list[dict[str, Any]]:
    """Name, shape, dtype and range of each output."""
    found = []
    for tensor, value in zip(declared, outputs, strict=True):
        entry = {"name": tensor["name"], "shape": list(value.shape), "dtype": str(value.dtype)}
        if value.size:
            numbers = value.astype("float64")
            entry |= {"min": float(numbers.min()), "max": float(numbers.max())}
            entry["mean"] = float(numbers.mean())
        found.append(entry)
    return found


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
        rows = [
            [o["name"], "x".join(map(str, o["shape"])), o["dtype"]]
            + [f"{o[key]:.4g}" if key in o else "" for key in ("min", "mean", "max")]
            for o in report["outputs"]
        ]
        print_table("outputs", ["name", "shape", "dtype", "min", "mean", "max"], rows)
    print(
        f"{report['median_ms']:.2f} ms median, {report['min_ms']:.2f} best, "
        f"{report['p90_ms']:.2f} p90, {report['p99_ms']:.2f} p99 of {report['repeats']} runs; "
        f"{report['images_per_s']:.1f} images/s, batch {report['batch']}, "
        f"module {report['module']} on {report['device']}"
    )
