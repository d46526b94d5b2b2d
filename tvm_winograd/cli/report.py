"""tvm-winograd report conv ROWS"""

from __future__ import annotations

import argparse
from pathlib import Path

from .common import print_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    # --json is added to this parser by the caller; its subjects take it too
    subjects = parser.add_subparsers(dest="subject", required=True, metavar="SUBJECT")
    text = "table and pictures of rows that `bench conv` wrote; no GPU is needed"
    conv = subjects.add_parser("conv", help=text, description=text)
    conv.add_argument("rows", metavar="ROWS", nargs="+", help=".json or .csv files")
    conv.add_argument("--out", metavar="DIR", help="conv.md and the pictures (default: a table)")
    conv.add_argument("--json", action="store_true", default=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    from ..bench.compare import markdown, means, tables
    from ..bench.rows import read

    rows = [row for path in args.rows for row in read(Path(path))]
    files: list[Path] = []
    if args.out:
        from ..report.pictures import draw

        files = [*draw(rows, Path(args.out)), Path(args.out, "conv.md")]
        files[-1].write_text(markdown(rows) + "\n", encoding="utf-8")
    if args.json:
        found = [
            {"setting": str(s), "against": m.other, "ratio": m.ratio, "convolutions": m.layers}
            for s, table in tables(rows).items()
            for m in means(table)
        ]
        print_json({"files": [str(f) for f in files], "means": found})
    else:
        print("\n".join(map(str, files)) if files else markdown(rows))
    return 0
