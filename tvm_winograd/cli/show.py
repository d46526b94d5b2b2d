"""tvm-winograd show MODEL"""

from __future__ import annotations

import argparse
from typing import Any

from .choice import add_choice_options, wishes_of
from .common import MODEL_HELP, add_model_options, input_shapes_of, print_json, print_table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    parser.add_argument("--layer", metavar="NAME", help="one convolution (default: all)")
    parser.add_argument(
        "--what",
        default="choice",
        choices=("choice", "config", "trace", "ir", "cuda", "resources"),
    )
    add_model_options(parser)
    add_choice_options(parser)


def run(args: argparse.Namespace) -> int:
    from ..check import inspect
    from ..conv import hardware_for
    from ..frontend import load_model

    hardware = hardware_for(args.target, args.arch)
    model = load_model(
        args.model,
        batch=args.batch,
        weights=args.weights,
        trust=args.trust,
        input_shapes=input_shapes_of(args),
    )
    layers, layout = inspect.choices_of(model, hardware, wishes_of(args))
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
            title = f"# {entry['layer']}: {entry['function']}"
            if args.what == "resources":
                kernels = entry["resources"]
                columns = [name.replace("_", " ") for name in kernels[0]] if kernels else []
                print_table(title, columns, [list(kernel.values()) for kernel in kernels])
            else:
                print(f"{title}\n{entry[args.what]}")
    return 0


def _row(choice: dict[str, Any]) -> list[Any]:
    return [choice[k] for k in ("name", "spec", "epilogue", "kernel", "source", "reason")]
