"""tvm-winograd kernels [CONVOLUTION]"""

from __future__ import annotations

import argparse
from typing import Any

from ..choose.options import Options
from .common import print_json, print_table
from .options import add_options, given, one_hardware

_EXAMPLE = "n1c64h56w56k64r3s3_st1_p1.1.1.1_d1_g1_float32_NCHW"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "convolution",
        metavar="CONVOLUTION",
        nargs="?",
        help=f"its key, as `show` prints it ({_EXAMPLE}): say of each kernel why it cannot "
        "compute it, or how long it may take",
    )
    parser.add_argument(
        "--epilogue", default="none", help="behind it: none, or e.g. bias+residual+relu"
    )
    add_options(parser, Options, only=("target", "arch"))


def run(args: argparse.Namespace) -> int:
    from ..check import support
    from ..shapes import ConvSpec, Epilogue

    hardware = one_hardware(given(args, Options))
    if args.convolution is None:
        _all(args, hardware)
        return 0
    spec = ConvSpec.from_key(args.convolution)
    found = support.of_convolution(spec, Epilogue.from_key(args.epilogue), hardware)
    entries = [one.as_dict() for one in found]
    if args.json:
        print_json({"arch": hardware.arch, "convolution": spec.key(), "kernels": entries})
        return 0
    rows = [[e["kernel"], e["algorithm"], _time(e["estimated_us"]), e["refused"] or "yes"]
            for e in entries]  # fmt: skip
    print_table(
        f"{spec.key()} on {hardware.arch}",
        ["kernel", "algorithm", "estimated us", "can compute it"],
        rows,
    )
    return 0


def _all(args: argparse.Namespace, hardware: Any) -> None:
    from ..check import support

    found = {kernel: support.properties(kernel, hardware) for kernel in support.kernels(hardware)}
    if args.json:
        entries = [_entry(kernel) | {"takes": takes} for kernel, takes in found.items()]
        print_json({"arch": hardware.arch, "kernels": entries})
        return
    columns = ["kernel", "algorithm", "math", *support.PROPERTIES]
    rows = [
        [kernel.name, kernel.algorithm, kernel.math, *("yes" * v for v in takes.values())]
        for kernel, takes in found.items()
    ]
    print_table(f"kernels for {hardware.arch} ({hardware.kind})", columns, rows)


def _entry(kernel: Any) -> dict[str, Any]:
    names = ("name", "algorithm", "math", "deterministic")
    return {name: getattr(kernel, name) for name in names}


def _time(us: float | None) -> str:
    return "" if us is None else f"{us:.1f}"
