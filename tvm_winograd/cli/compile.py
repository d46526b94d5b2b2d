"""tvm-winograd compile MODEL -o ARTIFACT"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..errors import InputError
from .choice import add_choice_options, wishes_of
from .common import (
    MODEL_HELP,
    add_model_options,
    input_shapes_of,
    print_json,
    print_table,
    progress_printer,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    parser.add_argument("-o", "--output", required=True, metavar="ARTIFACT", help="folder to write")
    add_model_options(parser, ranges=True)
    text = "of llvm: native, x86-64-v2, -v3, -v4, a name of LLVM's, or several with commas"
    parser.add_argument("--cpu", metavar="NAMES", help=text)
    parser.add_argument("--dtype", default="float32", help="float32 is what exists for now")
    add_choice_options(parser)
    parser.add_argument("--labels", metavar="FILE", help="class names, one per line")
    parser.add_argument("--compiler", choices=("nvrtc", "nvcc"), default="nvrtc")
    parser.add_argument("--no-ptx", action="store_true", help="no PTX for future GPUs")
    parser.add_argument(
        "--no-cuda-graph", action="store_true", help="launch kernel by kernel, not as one graph"
    )


def run(args: argparse.Namespace) -> int:
    from ..compiler import compile as compile_model

    artifact = compile_model(
        args.model,
        target=args.target,
        arch=args.arch,
        cpu=args.cpu,
        output=args.output,
        batch=args.batch,
        buckets=args.buckets,
        dtype=args.dtype,
        weights=args.weights,
        trust=args.trust,
        input_shapes=input_shapes_of(args),
        labels=_labels(args.labels),
        compiler=args.compiler,
        ptx=not args.no_ptx,
        cuda_graph=not args.no_cuda_graph,
        progress=progress_printer(),
        **wishes_of(args).options,
    )
    if args.json:
        print_json({"artifact": str(artifact.path), **artifact.manifest})
    else:
        for module in artifact.manifest["modules"]:
            _print_module(module)
        print(f"wrote {artifact.path}")
    return 0


def _labels(path: str | None) -> list[str] | None:
    if path is None:
        return None
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"labels file {path}: {error}") from error


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
