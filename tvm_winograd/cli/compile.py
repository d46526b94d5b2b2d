"""tvm-winograd compile MODEL -o ARTIFACT"""

from __future__ import annotations

import argparse
from typing import Any

from ..choose.options import Options
from .common import MODEL_HELP, print_json, print_table, progress_printer
from .options import add_options, given


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    parser.add_argument("-o", "--output", required=True, metavar="ARTIFACT", help="folder to write")
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
            _print_module(module)
        print(f"wrote {artifact.path}")
    return 0


def _print_module(module: dict[str, Any]) -> None:
    rows = [
        [layer["name"], layer["spec"], layer["epilogue"], layer["kernel"], layer["source"]]
        for layer in module["layers"]
    ]
    columns = ["layer", "convolution", "epilogue", "kernel", "source"]
    print_table(f"{module['name']}: {len(rows)} convolutions", columns, rows)
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


def _mib(count: int) -> str:
    return f"{count / 2**20:.1f} MiB"
