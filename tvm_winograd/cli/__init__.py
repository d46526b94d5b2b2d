"""`tvm-winograd`: parses, then calls a typed function. Commands import what they need lazily.

Exit codes: 0 done, 1 a check failed, 2 bad usage or input, 3 an internal error, 130 interrupted.
With --json, stdout carries one JSON document and everything else goes to stderr.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from .. import __version__
from ..errors import TvmWinogradError
from ..ir import without_torch
from . import interrupt

COMMANDS = {
    "compile": "compile a model into an artifact folder",
    "run": "run an artifact on an image or .npy file",
    "verify": "check an artifact or model against float64",
    "show": "show choices, schedules, IR, CUDA and resources of a model's convolutions",
    "kernels": "list the kernels and what each can compute; which can compute a convolution",
    "tune": "measure configs of a model's convolutions and write the best into tables",
    "logs": "list, show, merge, prune and check tables of tuning results",
    "bench": "measure convolutions and networks beside cuDNN, torch and stock TVM",
    "report": "tables and pictures of measured rows",
    "env": "show versions, compilers, devices and environment variables",
}

_WITHOUT_TORCH = ("compile", "kernels", "run", "show")  # the others may hand its tensors to TVM


def main(argv: Sequence[str] | None = None) -> int:
    """The console script. Returns the exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a path may hold what the terminal cannot show
            stream.reconfigure(errors="backslashreplace")
    try:
        args = _parser().parse_args(argv)
    except SystemExit as stop:  # a usage error, or --help
        return int(stop.code or 0)
    if argv is None:  # the process is ours
        interrupt.watch(args.command)
        if args.command in _WITHOUT_TORCH:
            without_torch.install()
    code = _run(args)
    if argv is None and code == interrupt.CODE:
        interrupt.leave()  # threads of compilers would be waited for
    return code


def _run(args: argparse.Namespace) -> int:
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
        print(interrupt.message(args.command), file=sys.stderr)
        return interrupt.CODE
    except Exception as error:
        print(f"tvm-winograd {args.command}: {_internal(error)}", file=sys.stderr)
        return 3


def _internal(error: Exception) -> str:
    """One line about an error that is no user's: what, and where it came from."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    first = next(iter(str(error).strip().splitlines()), "")[:200]
    where = f"{Path(frame.filename).name}:{frame.lineno}"
    return (
        f"internal error: {type(error).__name__}: {first} ({where}); this is a fault of ours: "
        "please report it with this line, the command and the model"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tvm-winograd", description="Winograd convolution for CNNs, compiled by Apache TVM."
    )
    parser.add_argument("--version", action="version", version=f"tvm-winograd {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text in COMMANDS.items():
        sub = commands.add_parser(name, help=text, description=text)
        import_module(f".{name}", __name__).add_arguments(sub)
        sub.add_argument("--json", action="store_true", help="one JSON document on stdout")
    return parser
