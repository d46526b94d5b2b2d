"""What the benchmarks of single kernels share: torch as a peer in true float32, and their files."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tvm_winograd import TvmWinogradError
from tvm_winograd.codegen import build
from tvm_winograd.gpu import Gpu
from tvm_winograd.measure import provenance
from tvm_winograd.measure.conditions import find_gpu
from tvm_winograd.measure.row_files import write_whole


def exit_code(main: Callable[[], int | None]) -> int:
    """Of a benchmark: main's, or 2 with a line where it ends with an error of ours."""
    try:
        return main() or 0
    except TvmWinogradError as error:
        print(error, file=sys.stderr)
        return 2


def start() -> tuple[Gpu, dict[str, Any]]:
    """(the first GPU here, what figures have to say about it); TF32 is off, cuDNN tries all."""
    gpu, _ = find_gpu()
    import torch

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    build.ensure_cuda_codegen()
    cudnn = torch.backends.cudnn.version()
    return gpu, {**asdict(provenance.collect(gpu)), "torch": torch.__version__, "cudnn": cudnn}


def save(path: Path | None, where: dict[str, Any], rows: Sequence[Any]) -> None:
    """All rows so far, dataclasses; nothing without a path."""
    if path is not None:
        records = [asdict(row) for row in rows]
        write_whole(path, json.dumps({"where": where, "rows": records}, indent=1))
