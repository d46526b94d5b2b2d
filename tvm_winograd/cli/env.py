"""tvm-winograd env"""

from __future__ import annotations

import argparse

from .common import print_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--cpp-flags", action="store_true", help="the g++ flags of a C++ host, and nothing else"
    )


def run(args: argparse.Namespace) -> int:
    if args.cpp_flags:
        from .cppflags import cpp_flags

        flags = cpp_flags()
        print_json({"cpp_flags": flags}) if args.json else print(flags)
        return 0
    from ..env import VARIABLES, collect

    found = collect()
    if args.json:
        print_json(found)
        return 0
    for name, value in found.items():
        if not isinstance(value, dict):
            print(f"{name:16} {value}")
            continue
        print(name)
        for key, item in value.items():
            meaning = f"   ({VARIABLES[key]})" if name == "variables" else ""
            print(f"  {key:22} {item}{meaning}")
    return 0
