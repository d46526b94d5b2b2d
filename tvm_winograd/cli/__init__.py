"""`tvm-winograd`: parses, then calls a typed function. Commands import what they need lazily.

Exit codes: 0 done, 1 a check failed, 2 bad usage or input. With --json, stdout carries one JSON
document and everything else goes to stderr.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from ..errors import TvmWinogradError

COMMANDS = {
    "compile": "compile a model into an artifact folder",
    "run": "run an artifact on an image or .npy file",
    "verify": "check an artifact or model against float64",
    "show": "show choices, schedules, IR, CUDA and resources of a model's convolutions",
    "tune": "measure configs of a model's convolutions and write the best into tables",
    "logs": "list, show, merge, prune and check tables of tuning results",
    "bench": "measure convolutions and networks beside cuDNN, torch and stock TVM",
    "report": "tables and pictures of measured rows",
    "env": "show versions, compilers, devices and environment variables",
}


def main(argv: Sequence[str] | None = None) -> int:
    """The console script. Returns the exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a path may hold what the terminal cannot show
            stream.reconfigure(errors="backslashreplace")
    args = _parser().parse_args(argv)
    command = import_module(f".{args.command}", __name__)
    try:
        code: int = command.run(args)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader has gone; Python's own flush at exit must not complain
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 2
    except (TvmWinogradError, OSError) as error:
        print(f"tvm-winograd {args.command}: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:  # a checkout used without an installation
        print(f"tvm-winograd {args.command}: {error}: pip install tvm-winograd", file=sys.stderr)
        return 2
    except MemoryError as error:
        print(f"tvm-winograd {args.command}: out of memory: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tvm-winograd", description="Winograd convolution for CNNs, compiled by Apache TVM."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text in COMMANDS.items():
        sub = commands.add_parser(name, help=text, description=text)
        import_module(f".{name}", __name__).add_arguments(sub)
        sub.add_argument("--json", action="store_true", help="one JSON document on stdout")
    return parser
