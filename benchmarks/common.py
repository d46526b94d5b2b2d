"""What the benchmarks of single kernels share: torch as a peer in true float32, and their files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tvm_winograd import build, env
from tvm_winograd.bench.row_files import write_whole
from tvm_winograd.gpu import Gpu, gpu_for
from tvm_winograd.tuning import provenance


def start() -> tuple[Gpu, dict[str, Any]]:
    """(the first GPU here, what figures have to say about it); TF32 is off, cuDNN tries all."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    build.ensure_cuda_codegen()
    gpu = gpu_for(env.collect()["gpus"][0]["arch"])
    cudnn = torch.backends.cudnn.version()
    return gpu, {**asdict(provenance.collect(gpu)), "torch": torch.__version__, "cudnn": cudnn}


def save(path: Path | None, where: dict[str, Any], rows: Sequence[Any]) -> None:
    """All rows so far, dataclasses; nothing without a path."""
    if path is not None:
        records = [asdict(row) for row in rows]
        write_whole(path, json.dumps({"where": where, "rows": records}, indent=1))
