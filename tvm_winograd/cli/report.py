"""tvm-winograd report conv | model ROWS"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from .common import print_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    # --json is added to this parser by the caller; its subjects take it too
    subjects = parser.add_subparsers(dest="subject", required=True, metavar="SUBJECT")
    for subject in ("conv", "model"):
        text = f"table and pictures of rows that `bench {subject}` wrote; no GPU is needed"
        sub = subjects.add_parser(subject, help=text, description=text)
        sub.add_argument("rows", metavar="ROWS", nargs="+", help=".json or .csv files")
        text = f"{subject}.md and the pictures (default: a table)"
        sub.add_argument("--out", metavar="DIR", help=text)
        sub.add_argument("--json", action="store_true", default=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    paths = [Path(path) for path in args.rows]
    out = Path(args.out) if args.out else None
    reported = _models if args.subject == "model" else _convs
    files, text, means = reported(paths, out)
    if out:
        files.append(out / f"{args.subject}.md")
        files[-1].write_text(text + "\n", encoding="utf-8")
    if args.json:
        print_json({"files": [str(f) for f in files], "means": means})
    else:
        print("\n".join(map(str, files)) if files else text)
    return 0


def _convs(paths: list[Path], out: Path | None) -> tuple[list[Path], str, list[dict[str, Any]]]:
    """Pictures drawn, the table, the means."""
    from ..bench.conv.compare import markdown, means, tables
    from ..bench.conv.rows import read

    rows = [row for path in paths for row in read(path)]
    files: list[Path] = []
    if out:
        from ..bench.conv.pictures import draw

        files = draw(rows, out)
    found = [
        {"setting": str(s), "against": m.other, "ratio": m.ratio, "convolutions": m.layers}
        for s, table in tables(rows).items()
        for m in means(table)
    ]
    return files, markdown(rows), found


def _models(paths: list[Path], out: Path | None) -> tuple[list[Path], str, list[dict[str, Any]]]:
    """The same; kernels are read from the files beside the rows'."""
    from dataclasses import asdict

    from ..bench.network.compare import markdown, means, table
    from ..bench.network.rows import KERNELS, MODELS, kernel_files

    rows = [row for path in paths for row in MODELS.read(path)]
    kernels = [row for path in kernel_files(paths) if path.exists() for row in KERNELS.read(path)]
    files: list[Path] = []
    if out:
        from ..bench.network.pictures import draw

        files = draw(rows, kernels, out)
    return files, markdown(rows, kernels), [asdict(mean) for mean in means(table(rows))]
