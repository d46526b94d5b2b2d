"""tvm-winograd show MODEL"""

from __future__ import annotations

import argparse
from typing import Any

from ..choose.options import Options, Wishes
from .common import MODEL_HELP, print_json, print_table
from .options import MODEL, add_options, given, load_one, one_hardware


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    parser.add_argument("--layer", metavar="NAME", help="one convolution (default: all)")
    parser.add_argument(
        "--what",
        default="choice",
        choices=("choice", "config", "trace", "stages", "ir", "cuda", "resources"),
    )
    add_options(parser, Options, only=MODEL)
    add_options(parser, Wishes)


def run(args: argparse.Namespace) -> int:
    from ..check import inspect

    options = given(args, Options)
    hardware = one_hardware(options)
    model = load_one(args.model, options)
    layers, layout = inspect.choices_of(model, hardware, options)
    entries = inspect.describe(inspect.pick(layers, args.layer), hardware, args.what)
    if args.json:
        print_json(entries)
    elif args.what == "choice":
        rows = [_row(entry["choice"]) for entry in entries]
        columns = ["layer", "convolution", "epilogue", "kernel", "source", "reason"]
        print_table(f"{args.model} for {hardware.arch}", columns, rows)
        if layout:
            print(f"layout {layout.chosen} (given {layout.given}): {layout.reason}")
    else:
        for entry in entries:
            _print(f"# {entry['layer']}: {entry['function']}", args.what, entry[args.what])
    return 0


def _print(title: str, what: str, value: Any) -> None:
    """One layer's rung of the ladder, as text."""
    if what == "resources":
        columns = [name.replace("_", " ") for name in value[0]] if value else []
        print_table(title, columns, [list(kernel.values()) for kernel in value])
    elif what == "stages":
        print(title)
        for one in value:
            print(f"\n# stage {one['stage']}\n# loops: {one['loops']}\n{one['ir']}")
    else:
        print(f"{title}\n{value}")


def _row(choice: dict[str, Any]) -> list[Any]:
    return [choice[k] for k in ("name", "spec", "epilogue", "kernel", "source", "reason")]
