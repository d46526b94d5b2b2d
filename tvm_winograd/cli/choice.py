"""Options of how kernels are chosen, for the commands that compile a network."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING

from .. import precision
from ..errors import InputError

if TYPE_CHECKING:
    from ..choose.wishes import Wishes

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}


def add_choice_options(parser: argparse.ArgumentParser) -> None:
    """--logs, --algorithm, --layout, --use, and the limits"""
    add = parser.add_argument
    add("--logs", metavar="DIR", help="tuning tables, before the shipped ones")
    add("--algorithm", default="auto", help="for every convolution it applies to")
    text = "of all maps inside (default: auto, the faster by estimate)"
    add("--layout", default="auto", choices=("auto", "NCHW", "NHWC"), help=text)
    text = "for this convolution, or an error; may be repeated"
    add("--use", action="append", default=[], metavar="LAYER=ALGORITHM", help=text)
    add("--algorithms", default="auto", metavar="A,B", help="one of these, or an error")
    text = "only algorithms whose limit is this or less: 1e-6 leaves out winograd-f4"
    add("--max-error", type=float, metavar="E", help=text)
    text = "of one convolution, beside its arguments: e.g. 0 or 64M"
    add("--workspace-limit", metavar="BYTES", help=text)
    add("--deterministic", action="store_true", help="two runs must give the same bits")
    add_math_option(parser)


def add_math_option(parser: argparse.ArgumentParser, default: str | None = "float32") -> None:
    """--math"""
    text = (
        "what products of float32 may be computed with (default float32: fma and fp16x3, both as "
        "exact as float32); fma: that alone; tf32: TF32 as well, of which there is no kernel yet"
    )
    parser.add_argument("--math", default=default, choices=tuple(precision.WISHES), help=text)


def wishes_of(args: argparse.Namespace) -> Wishes:
    """Raises:
    InputError: an option of another form.  UnsupportedError: an unknown algorithm.
    """
    from ..choose.select import Limits
    from ..choose.wishes import Wishes

    limits = Limits(
        algorithms=tuple(name.strip() for name in args.algorithms.split(",")),
        max_error=args.max_error,
        workspace=None if args.workspace_limit is None else parse_bytes(args.workspace_limit),
        deterministic=args.deterministic,
        math=args.math,
    )
    layers = dict(map(_layer, args.use))
    return Wishes(args.logs, args.algorithm, limits, layers, layout=args.layout)


def parse_bytes(text: str) -> int:
    """ "0", "1024", "64M" (or MiB)"""
    found = re.fullmatch(r"(\d+)\s*([KMG]?)(i?B)?", text.strip(), re.IGNORECASE)
    if found is None:
        raise InputError(f"{text!r}: a number of bytes is needed, e.g. 0, 1048576 or 64M")
    return int(found[1]) * _UNITS[found[2].upper()]


def _layer(text: str) -> tuple[str, str]:
    name, equals, algorithm = text.partition("=")
    if not (name and equals and algorithm):
        raise InputError(f"--use {text!r}: LAYER=ALGORITHM is needed, e.g. --use conv1=gemm")
    return name, algorithm
