"""Records of options on the command line: a flag for each field, and a record of what was given."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Collection
from dataclasses import Field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ..choose.options import Asked, Options
from ..deploy.batches import parse_batch, parse_buckets
from ..errors import InputError
from ..gpu import Hardware

if TYPE_CHECKING:
    from ..frontend import Model

PAIRED = ("pairs", "shapes")  # forms of which several make a dict
T = TypeVar("T", bound=Asked)
MODEL = (
    "target",
    "arch",
    "batch",
    "weights",
    "trust",
    "input_shapes",
)  # what every command needs to load a model
_DEST = "option "  # before a field's name: no option of a command's own is called so
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}


def parse_bytes(text: str) -> int:
    """ "0", "1024", "64M" (or MiB)"""
    found = re.fullmatch(r"(\d+)\s*([KMG]?)(i?B)?", text.strip(), re.IGNORECASE)
    if found is None:
        raise InputError(f"{text!r}: a number of bytes is needed, e.g. 0, 1048576 or 64M")
    return int(found[1]) * _UNITS[found[2].upper()]


def parse_names(text: str) -> tuple[str, ...]:
    """ "a, b" as ("a", "b")"""
    return tuple(name.strip() for name in text.split(","))


def parse_pair(text: str) -> tuple[str, str]:
    """ "conv1=gemm" as ("conv1", "gemm")"""
    name, equals, algorithm = text.partition("=")
    if not (name and equals and algorithm):
        raise InputError(f"{text!r}: LAYER=ALGORITHM is needed, e.g. --use conv1=gemm")
    return name, algorithm


def parse_shape(text: str) -> tuple[str, tuple[int, ...] | int]:
    """ "images=1x3x320x320" as ("images", (1, 3, 320, 320)), "height=320" as ("height", 320)"""
    name, _, sizes = text.rpartition("=")
    parts = sizes.split("x")
    if not name or not all(p.isdecimal() and 0 < int(p) < 2**31 for p in parts):
        raise InputError(f"{text!r}: NAME=1x3x320x320 or NAME=320 is needed, sizes from 1 on")
    return name, tuple(map(int, parts)) if len(parts) > 1 else int(parts[0])


def read_lines(path: str) -> list[str]:
    """The lines of a text file."""
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"labels file {path}: {error}") from error


# form of a field -> its value of the text on the command line
FORMS: dict[str, Callable[[str], Any]] = {
    "text": str,
    "path": str,
    "float": float,
    "int": int,
    "bytes": parse_bytes,
    "names": parse_names,
    "pairs": parse_pair,
    "shapes": parse_shape,
    "batch": parse_batch,
    "buckets": parse_buckets,
    "lines": read_lines,
}


def add_options(
    parser: argparse.ArgumentParser, record: type[Asked], *, only: Collection[str] = ()
) -> None:
    """A flag for each field of a record, or for those named in `only`; unset ones stay away."""
    for known in record.options():
        if known.metadata["flag"] and (not only or known.name in only):
            _add(parser, known)


def _add(parser: argparse.ArgumentParser, known: Field[Any]) -> None:
    says = known.metadata
    more: dict[str, Any] = {
        "dest": _DEST + known.name,
        "default": argparse.SUPPRESS,
        "help": _help(known),
    }
    if isinstance(known.default, bool):
        more["action"] = "store_false" if known.default else "store_true"
    elif says["form"] in PAIRED:
        parse = _checked(FORMS[says["form"]])
        more |= {"action": "append", "type": parse, "metavar": says["metavar"]}
    elif says["choices"]:
        more["choices"] = says["choices"]
    else:
        more |= {"type": _checked(FORMS[says["form"]]), "metavar": says["metavar"]}
    parser.add_argument(says["flag"], **more)


def _help(known: Field[Any]) -> str:
    """The meaning, and the default where it is a word."""
    word = known.default if isinstance(known.default, str) else ""
    text = known.metadata["text"].replace("%", "%%")
    return f"{text} (default {word})" if word else text


def given(args: argparse.Namespace, record: type[T]) -> T:
    """The record of what was given; the rest as by default.

    Raises:
        UnsupportedError: values that mean nothing.
    """
    found = {f.name: value_of(args, f.name) for f in record.options() if is_given(args, f.name)}
    for known in record.options():
        if known.metadata["form"] in PAIRED and known.name in found:
            found[known.name] = dict(found[known.name])
    return record().but(**found)


def is_given(args: argparse.Namespace, name: str) -> bool:
    """Whether the option of a field was given."""
    return hasattr(args, _DEST + name)


def value_of(args: argparse.Namespace, name: str) -> Any:
    """What was given for a field."""
    return getattr(args, _DEST + name)


def _checked(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """`parse` as argparse wants it: our error is its usage error."""

    def parsed(text: str) -> Any:
        try:
            return parse(text)
        except InputError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    parsed.__name__ = parse.__name__  # argparse names it where a plain ValueError comes out
    return parsed


def one_hardware(options: Options) -> Hardware:
    """The hardware of a command for one architecture.

    Raises:
        UnsupportedError: an unknown one, or several.
    """
    from ..conv import hardware_for

    arch = options.arch
    return hardware_for(options.target, arch if isinstance(arch, str | None) else ",".join(arch))


def one_batch(options: Options) -> int | None:
    """The batch of a command that takes no range.

    Raises:
        InputError: a range.
    """
    if isinstance(options.batch, tuple):
        low, high = options.batch
        raise InputError(f"--batch {low}-{high}: one number is needed here")
    return options.batch


def load_one(model: str, options: Options) -> Model:
    """The model of a command, at the one batch that is asked for."""
    from ..frontend import load_model

    return load_model(
        model,
        batch=one_batch(options),
        weights=options.weights,
        trust=options.trust,
        input_shapes=options.input_shapes,
    )
