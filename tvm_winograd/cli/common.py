"""Arguments and output that several commands share."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from typing import Any

from ..deploy.batches import parse_batch, parse_buckets
from ..errors import InputError

MODEL_HELP = "a built-in (resnet18, vgg16, mobilenetv2, unet, ...), an .onnx or a .pt2 file"


def add_model_options(parser: argparse.ArgumentParser, *, ranges: bool = False) -> None:
    """--target, --arch, --batch, --weights, --input-shape, --trust; with `ranges` --batch 1-32
    and --buckets"""
    parser.add_argument("--target", choices=("llvm", "cuda"), default="llvm")
    parser.add_argument("--arch", help="of cuda: e.g. sm_90 or sm_90,sm_86 (default sm_90)")
    images = "images per run (default: the model's, or 1)"
    if ranges:
        parser.add_argument("--batch", type=_checked(parse_batch), help=f"{images}; or e.g. 1-32")
        parser.add_argument(
            "--buckets", type=_checked(parse_buckets), metavar="N,...",
            help="sizes to compile such a range for (default: powers of two), or to verify",
        )  # fmt: skip
    else:
        parser.add_argument("--batch", type=int, help=images)
    parser.add_argument("--weights", help=".safetensors or .npz (default: seeded random)")
    text = "a size that a file leaves open: images=1x3x320x320, or height=320; may be repeated"
    parser.add_argument(
        "--input-shape", action="append", default=[], metavar="NAME=SIZES", help=text
    )
    text = "load a .pt2 file that holds pickles or code, which torch then runs"
    parser.add_argument("--trust", action="store_true", help=text)


def input_shapes_of(args: argparse.Namespace) -> dict[str, Any]:
    """The values of --input-shape: a shape, or a number.

    Raises:
        InputError: another form.
    """
    found: dict[str, Any] = {}
    for text in args.input_shape:
        name, _, sizes = text.rpartition("=")
        parts = sizes.split("x")
        if not name or not all(p.isdecimal() and 0 < int(p) < 2**31 for p in parts):
            raise InputError(
                f"--input-shape {text!r}: NAME=1x3x320x320 or NAME=320 is needed, sizes from 1 on"
            )
        found[name] = tuple(map(int, parts)) if len(parts) > 1 else int(parts[0])
    return found


def _checked(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """`parse` as argparse wants it: our error is its usage error."""

    def parsed(text: str) -> Any:
        try:
            return parse(text)
        except InputError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return parsed


def progress_printer() -> Callable[[str], None]:
    """A function that shows a step and the seconds so far, on stderr."""
    from rich.console import Console
    from rich.markup import escape

    console, start = Console(stderr=True, highlight=False), time.perf_counter()

    def show(text: str) -> None:
        console.print(f"[dim]{time.perf_counter() - start:6.1f} s[/dim]  {escape(text)}")

    return show


def print_json(value: Any) -> None:
    """The one document of --json. JSON has no NaN and no infinity: they become null."""
    json.dump(_finite(value), sys.stdout, indent=2, allow_nan=False)
    print()


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def print_table(title: str, columns: list[str], rows: list[list[Any]]) -> None:
    """A table on stdout, as wide as it needs where stdout is no terminal."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=200)
    table = Table(*columns, title=title, title_justify="left")
    for row in rows:
        table.add_row(*(escape(str(value)) for value in row))
    console.print(table)
