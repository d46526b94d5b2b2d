"""tvm-winograd bench model MODEL..."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..choose.options import Wishes
from .bench_common import files_of, names, numbers
from .common import MODEL_HELP, print_json, progress_printer
from .options import add_options, given

_BATCHES = (1, 32, 128)


def add_parser(subjects: Any) -> argparse.ArgumentParser:
    """The parser of `bench model`, among `bench`'s subjects; the caller adds --json."""
    text = "whole networks: ours beside torch and stock TVM, with the same weights"
    parser: argparse.ArgumentParser = subjects.add_parser("model", help=text, description=text)
    add = parser.add_argument
    add("models", metavar="MODEL", nargs="+", help=f"{MODEL_HELP}; or an artifact's folder")
    text = f"images per run (default {','.join(map(str, _BATCHES))}); not of artifacts"
    add("--batch", type=numbers, default=_BATCHES, metavar="N,N", help=text)
    text = "e.g. ours,ours-kernels,torch-graph (default: all that are here but ours-kernels)"
    add("--providers", type=names, default=[], metavar="A,B", help=text)
    add("--weights", help=".safetensors or .npz (default: seeded random)")
    add_options(parser, Wishes)
    add("--stock", metavar="DIR", help="databases of benchmarks/stock_metaschedule_model.py")
    add("--arch", default="auto", help="to make sure of the GPU's architecture")
    add("--jobs", type=int, metavar="N", help="networks compiled at a time (default: the cores)")
    add("--profile", action="store_true", help="also the time of every kernel of ours")
    text = "rows as model.json and model.csv, kernels beside them; what is there is kept"
    add("--out", metavar="DIR", help=text)
    add("--csv", metavar="FILE", help="rows as CSV")
    add("--pictures", metavar="DIR", help="speed-ups, and the kernels of a profile, as bars")
    return parser


def run(args: argparse.Namespace) -> int:
    from ..bench.network.compare import markdown
    from ..bench.network.rows import KERNELS, MODELS
    from ..bench.network.session import bench_models

    if args.pictures:
        from ..bench.network.pictures import draw
        from ..bench.pictures import pyplot

        pyplot()  # fail before anything is measured
    rows, kernels = bench_models(
        args.models,
        batches=args.batch,
        providers=args.providers,
        wishes=given(args, Wishes),
        weights=args.weights,
        arch=args.arch,
        stock=Path(args.stock) if args.stock else None,
        jobs=args.jobs,
        profiled=args.profile,
        files=files_of(args, "model"),
        progress=progress_printer(),
    )
    if args.pictures:
        draw(rows, kernels, Path(args.pictures))
    if args.json is True:
        found = {"rows": list(map(MODELS.record, rows))}
        print_json({**found, "kernels": list(map(KERNELS.record, kernels))})
    else:
        print(markdown(rows, kernels))
    return 0
