"""torch as a provider: conv2d in cuDNN's benchmark mode, TF32 off; optionally torch.compile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tvm_winograd.measure.problem import Problem
from tvm_winograd.shapes import ConvSpec, Epilogue
from tvm_winograd.truth import peers

from .provider import PEER_LIMIT, Bench, Prepared, Variant


class Torch:
    """torch.nn.functional.conv2d, and what the epilogue asks for as further operators."""

    name, ours = "torch", False
    operator = "conv2d"  # the name of the variant

    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    def available(self) -> str | None:
        return None if peers.has_torch_cuda() else "torch with CUDA is not installed"

    def variants(self, spec: ConvSpec, epilogue: Epilogue) -> Iterator[Variant]:
        import torch

        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        torch.backends.cudnn.benchmark = True
        with torch.cuda.stream(torch.cuda.ExternalStream(self._bench.timer.handle)):
            yield Variant(self.operator, self._prepare)

    def transformed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Changes the function before it is run."""
        return function

    def _prepare(self, problem: Problem, folder: Path | None) -> Prepared:
        import torch

        arrays = [torch.from_dlpack(tensor) for tensor in problem.tensors()]
        function = self.transformed(conv_of(problem.spec, problem.epilogue))
        result: list[Any] = [None]  # torch allocates it

        def call() -> None:
            result[0] = function(*arrays)

        return Prepared(
            call=call,
            output=lambda: result[0].cpu().numpy(),
            algorithm=PEER_LIMIT,
            config=f"torch {torch.__version__}, cudnn.benchmark",
        )


class TorchCompile(Torch):
    """The same through torch.compile with max-autotune, CUDA graphs left to the timer."""

    name = "torch-compile"

    def transformed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        import torch

        compiled: Callable[..., Any] = torch.compile(
            function, mode="max-autotune-no-cudagraphs", dynamic=False
        )
        return compiled


def conv_of(spec: ConvSpec, epilogue: Epilogue) -> Callable[..., Any]:
    """Makes the function (x, w[, bias][, residual]) -> output, NCHW, of torch's operators."""
    import torch.nn.functional as functional

    top, left, bottom, right = spec.padding
    alike, applied = (top, left) == (bottom, right), epilogue.applied

    def conv(x: Any, w: Any, *rest: Any) -> Any:
        if not alike:
            x = functional.pad(x, (left, right, top, bottom))
        padding = (top, left) if alike else (0, 0)
        bias = rest[0].to(x.dtype) if epilogue.bias else None
        y = functional.conv2d(x, w, bias, spec.stride, padding, spec.dilation, spec.groups)
        y = y + rest[-1] if epilogue.residual else y
        return applied.torch(functional, y) if applied else y

    return conv
