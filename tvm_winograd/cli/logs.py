"""tvm-winograd logs ls|show|merge|prune|check"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from .common import print_json, print_table, progress_printer

if TYPE_CHECKING:
    from ..tables.lookup import Row

_ACTIONS = {
    "ls": "the tables of a folder, with the number of rows",
    "show": "the rows of a folder, or those of one convolution",
    "merge": "put the rows of other folders or files into DIR, the best of each kept",
    "prune": "drop rows that `check` complains about, and all but the best of each",
    "check": "does every row still construct, fit its GPU, schedule, and state its error?",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    # --json is added to this parser by the caller; its actions take it too
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, text in _ACTIONS.items():
        sub = actions.add_parser(name, help=text, description=text)
        written = name in ("merge", "prune")
        sub.add_argument(
            "folder",
            metavar="DIR",
            nargs=None if written else "?",
            help="folder of tables" + ("" if written else " (default: the shipped ones)"),
        )
        sub.add_argument("--json", action="store_true", default=argparse.SUPPRESS)
        if name == "merge":
            sub.add_argument("sources", metavar="FROM", nargs="+", help="folders or .csv files")
        if name == "show":
            sub.add_argument("--spec", metavar="TEXT", help="rows whose convolution has this text")
        if name == "check":
            sub.add_argument("--build", action="store_true", help="also compile each row")


def run(args: argparse.Namespace) -> int:
    from ..tables.lookup import folder_of, shipped_folder

    folder = Path(args.folder) if args.folder else shipped_folder()
    if args.action != "merge":
        folder_of(folder)
    actions: dict[str, Callable[[argparse.Namespace, Path], int]] = {
        "ls": _ls, "show": _show, "merge": _merge, "prune": _prune, "check": _check,
    }  # fmt: skip
    return actions[args.action](args, folder)


def _ls(args: argparse.Namespace, folder: Path) -> int:
    from ..tables.lookup import read_table, tables

    entries = []
    for path in tables(folder):
        rows, complaints = read_table(path)
        entries.append({"table": str(path.relative_to(folder)), **_summary(rows, complaints)})
    if args.json:
        print_json({"folder": str(folder), "tables": entries})
    else:
        lines = [
            [e["table"], ", ".join(e["gpus"]), e["rows"], e["measured"], len(e["complaints"])]
            for e in entries
        ]
        print_table(str(folder), ["table", "GPU", "rows", "measured", "bad lines"], lines)
    return 0


def _summary(rows: list[Row], complaints: list[str]) -> dict[str, Any]:
    return {
        "gpus": sorted({row.gpu for row in rows}),
        "rows": len(rows),
        "measured": sum(row.origin == "measured" for row in rows),
        "convolutions": len({row.spec for row in rows}),
        "kernels": dict(Counter(row.kernel for row in rows)),
        "complaints": complaints,
    }


def _show(args: argparse.Namespace, folder: Path) -> int:
    from ..tables.lookup import read_folder

    rows, complaints = read_folder(folder)
    rows = [row for row in rows if not args.spec or args.spec in row.spec]
    if args.json:
        shown = [{k: v for k, v in asdict(r).items() if k != "place"} for r in rows]
        print_json({"folder": str(folder), "rows": shown, "complaints": complaints})
    else:
        columns = ["GPU", "convolution", "epilogue", "kernel", "us", "error", "origin"]
        lines = [
            [r.gpu, r.spec, r.epilogue, r.kernel, f"{r.us:.1f}", r.error, r.origin] for r in rows
        ]
        print_table(str(folder), columns, lines)
        _print_lines(complaints)
    return 0


def _merge(args: argparse.Namespace, folder: Path) -> int:
    from ..tables import store as log_store
    from ..tables.lookup import read_folder, read_table, read_tables, tables

    rows, complaints = [], []
    for source in map(Path, args.sources):
        if not source.exists():
            raise InputError(f"{source} does not exist; give folders of tables or .csv files")
        got, bad = read_folder(source) if source.is_dir() else read_table(source)
        rows += got
        complaints += bad
    before = {log_store.key(r): r for r in read_tables(tables(folder))[0]}
    complaints += log_store.merge(folder, rows)
    after = {log_store.key(r): r for r in read_tables(tables(folder))[0]}
    result = {
        "folder": str(folder),
        "read": len(rows),
        "new": len(set(after) - set(before)),
        "replaced": sum(after[k].us != r.us for k, r in before.items() if k in after),
        "complaints": complaints,
    }
    if args.json:
        print_json(result)
    else:
        print(f"{result['read']} rows read: {result['new']} new, {result['replaced']} replaced")
        _print_lines(complaints)
    return 0


def _prune(args: argparse.Namespace, folder: Path) -> int:
    from ..tuning.check import prune

    kept, dropped, complaints = prune(folder)
    if args.json:
        print_json({"kept": kept, "dropped": dropped, "complaints": complaints})
    else:
        print(f"{kept} rows kept, {dropped} dropped, {len(complaints)} unreadable lines dropped")
        _print_lines(complaints)
    return 0


def _check(args: argparse.Namespace, folder: Path) -> int:
    from ..tuning.check import check_folder

    progress = progress_printer() if args.build else lambda text: None
    checked = check_folder(folder, compile=args.build, progress=progress)
    if args.json:
        print_json(checked.as_dict())
    else:
        _print_lines(checked.problems)
        print(f"{checked.rows} rows, {len(checked.problems)} problems")
    return 1 if checked.problems else 0


def _print_lines(lines: list[str]) -> None:
    for line in lines:
        print(line)
