"""Arguments that the subjects of `bench` share."""

from __future__ import annotations

import argparse
from pathlib import Path


def files_of(args: argparse.Namespace, subject: str) -> list[Path]:
    """Where rows are to be written: --out, --json FILE, --csv."""
    endings = (".json", ".csv") if args.out else ()
    files = [Path(args.out, subject + ending) for ending in endings]
    files += [Path(args.json)] if isinstance(args.json, str) else []
    return [*files, Path(args.csv)] if args.csv else files


def names(text: str) -> list[str]:
    """ "a,b" """
    return [name.strip() for name in text.split(",") if name.strip()]


def numbers(text: str) -> list[int]:
    """ "1,32" """
    return [int(name) for name in names(text)]
