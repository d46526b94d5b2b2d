"""tvm-winograd compile MODEL -o ARTIFACT"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable
from typing import Any

from ..choose.options import Options
from .common import MODEL_HELP, print_json, print_table, progress_printer
from .options import add_options, given


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    parser.add_argument("-o", "--output", required=True, metavar="ARTIFACT", help="folder to write")
    parser.add_argument("-v", "--verbose", action="store_true", help="a line for each convolution")
    add_options(parser, Options)


def run(args: argparse.Namespace) -> int:
    from ..compiler import compile as compile_model

    artifact = compile_model(
        args.model,
        output=args.output,
        options=given(args, Options),
        progress=progress_printer(),
    )
    if args.json:
        print_json({"artifact": str(artifact.path), **artifact.manifest})
    else:
        for module in artifact.manifest["modules"]:
            _print_module(module, verbose=args.verbose)
        print(f"wrote {artifact.path}")
    return 0


def _print_module(module: dict[str, Any], *, verbose: bool) -> None:
    layers, title = module["layers"], f"{module['name']}: {len(module['layers'])} convolutions"
    if verbose:
        keys = ("name", "spec", "epilogue", "kernel", "source")
        columns = ["layer", "convolution", *keys[2:]]
        print_table(title, columns, [[layer[key] for key in keys] for layer in layers])
    else:
        kernels = _counted(layer["kernel"] for layer in layers)
        print(f"{title}: {kernels}; configs: {_counted(layer['source'] for layer in layers)}")
    workspace = max((layer["workspace_bytes"] for layer in module["layers"]), default=0)
    if layout := module["layout"]:
        print(f"layout {layout['chosen']} (given {layout['given']}): {layout['reason']}")
    print(
        f"activations and workspaces {_mib(module['planned_bytes'])}, "
        f"the largest layer's workspace {_mib(workspace)}"
    )
    if graph := module["cuda_graph"]:
        calls = graph["captured"] + graph["launched"]
        print(f"{graph['regions']} CUDA graph holds {graph['captured']} of {calls} function calls")


def _counted(names: Iterable[str]) -> str:
    """Of ["a", "b", "a"]: "2 a, 1 b"."""
    return ", ".join(f"{count} {name}" for name, count in Counter(names).most_common()) or "none"


def _mib(count: int) -> str:
    return f"{count / 2**20:.1f} MiB"
