"""cuDNN as a provider: every forward algorithm, each alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from tvm_winograd.measure.cudnn_library import ALGORITHMS, LIBRARY, Cudnn, ForwardConv, load_cudnn
from tvm_winograd.measure.problem import Problem
from tvm_winograd.shapes import ConvSpec, Epilogue

from .provider import PEER_LIMIT, Bench, Prepared, Variant


class CudnnAlgorithms:
    """Variants are the algorithms of cudnnConvolutionFwdAlgo_t, in float32 FMA arithmetic."""

    name, ours = "cudnn", False

    def __init__(self, bench: Bench) -> None:
        library = load_cudnn()
        self._bench, self._missing = bench, library is None
        self._cudnn = Cudnn(library)

    def available(self) -> str | None:
        return f"{LIBRARY} was not found: pip install torch" if self._missing else None

    def variants(self, spec: ConvSpec, epilogue: Epilogue) -> Iterator[Variant]:
        with ExitStack() as made:
            stream = self._bench.timer.handle
            described = cache(lambda: ForwardConv(self._cudnn, made, stream, spec, epilogue))
            for number, name in enumerate(ALGORITHMS):
                yield Variant(name, partial(self._prepare, described, number))

    def _prepare(
        self,
        described: Callable[[], ForwardConv],
        algorithm: int,
        problem: Problem,
        folder: Path | None,
    ) -> Prepared:
        import tvm

        spec, epilogue, device = problem.spec, problem.epilogue, tvm.device("cuda", 0)
        conv = described()
        size = conv.workspace_bytes(algorithm)
        workspace = tvm.runtime.empty((max(size, 1),), "uint8", device)
        x, w, *rest = problem.tensors()
        out = problem.poisoned()
        bias = rest.pop(0) if epilogue.bias else problem.on_device(np.zeros(spec.k, "float32"))
        residual = rest.pop(0) if epilogue.residual else out  # the address is not read
        arrays = (x, w, bias, residual, out)
        addresses = [tensor.data_ptr() for tensor in arrays]
        memory = (workspace.data_ptr(), size)

        def call(alive: Any = (arrays, workspace)) -> None:  # the addresses keep nothing alive
            conv.run(algorithm, addresses, memory)

        return Prepared(
            call=call,
            output=out.numpy,
            algorithm=PEER_LIMIT,
            config=f"cuDNN {self._cudnn.version()}, FMA arithmetic",
            math="fma",
            workspace_bytes=size,
        )
