"""tvm-winograd bench conv | model"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import InputError
from . import bench_model
from .bench_common import files_of, names, numbers
from .common import print_json, progress_printer

if TYPE_CHECKING:
    from ..bench.conv.run import Settings
    from ..shapes import ConvSpec


def add_arguments(parser: argparse.ArgumentParser) -> None:
    # --json is added to this parser by the caller; its subjects take it too
    subjects = parser.add_subparsers(dest="subject", required=True, metavar="SUBJECT")
    text = "single convolutions: ours beside cuDNN's algorithms, torch and stock TVM"
    conv = subjects.add_parser("conv", help=text, description=text)
    add = conv.add_argument
    add("specs", metavar="SPEC", nargs="*", help="convolutions, as `show` writes them")
    add("--layers", metavar="NAME", help="of a network: resnet (the default) or vgg")
    add("--batch", type=numbers, default=[], metavar="N,N", help="at these batches")
    add("--epilogue", default="none", help="e.g. bias+residual+relu, bias+silu (default none)")
    text = "e.g. ours,cudnn:FFT (default: all that are here)"
    add("--providers", type=names, default=[], metavar="A,B", help=text)
    add("--modes", type=names, default=[], metavar="A,B", help="graph, back_to_back")
    add("--l2", type=names, default=[], metavar="A,B", help="warm, cold")
    add("--logs", metavar="DIR", help="tuning tables, before the shipped ones")
    add("--stock", metavar="DIR", help="records of benchmarks/stock_metaschedule.py")
    add("--arch", default="auto", help="to make sure of the GPU's architecture")
    add("--jobs", type=int, metavar="N", help="kernels compiled at a time (default: the cores)")
    add("--out", metavar="DIR", help="rows as conv.json and conv.csv; what is there is kept")
    add("--csv", metavar="FILE", help="rows as CSV")
    add("--pictures", metavar="DIR", help="a heat map and a roofline")
    text = "rows as JSON into FILE; without it, as one document on stdout"
    for parser_of in (conv, bench_model.add_parser(subjects)):
        parser_of.add_argument(
            "--json", nargs="?", const=True, default=argparse.SUPPRESS, metavar="FILE", help=text
        )


def run(args: argparse.Namespace) -> int:
    return bench_model.run(args) if args.subject == "model" else _run_convs(args)


def _run_convs(args: argparse.Namespace) -> int:
    from ..bench.conv.compare import markdown
    from ..bench.conv.rows import CONVS
    from ..bench.conv.session import bench_convs
    from ..shapes import Epilogue

    if args.pictures:
        from ..bench.conv.pictures import draw
        from ..bench.pictures import pyplot

        pyplot()  # fail before anything is measured
    rows = bench_convs(
        _specs(args),
        Epilogue.from_key(args.epilogue),
        providers=args.providers,
        settings=_settings(args),
        arch=args.arch,
        log_folder=Path(args.logs) if args.logs else None,
        stock=Path(args.stock) if args.stock else None,
        jobs=args.jobs,
        files=files_of(args, "conv"),
        progress=progress_printer(),
    )
    if args.pictures:
        draw(rows, Path(args.pictures))
    if args.json is True:
        print_json({"rows": list(map(CONVS.record, rows))})
    else:
        print(markdown(rows))
    return 0


def _specs(args: argparse.Namespace) -> list[ConvSpec]:
    from ..bench.conv import layers
    from ..shapes import ConvSpec

    given = layers.at_batches([ConvSpec.from_key(text) for text in args.specs], args.batch)
    network = args.layers or (None if given else "resnet")
    return list(dict.fromkeys([*given, *(layers.named(network, args.batch) if network else [])]))


def _settings(args: argparse.Namespace) -> Settings:
    from ..bench.conv.run import Settings
    from ..measure.cuda_timing import L2_STATES, MODES

    for option, known in (("modes", MODES), ("l2", L2_STATES)):
        if unknown := [name for name in getattr(args, option) if name not in known]:
            raise InputError(f"--{option} {unknown[0]}: there are {', '.join(known)}")
    return Settings(modes=args.modes or MODES, l2=args.l2 or L2_STATES)
