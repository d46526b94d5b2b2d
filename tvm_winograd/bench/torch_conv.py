"""torch as a provider: conv2d in cuDNN's benchmark mode, TF32 off; optionally torch.compile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from .. import peers
from .problem import Problem
from .provider import PEER_LIMIT, Bench, Prepared, Variant


class Torch:
    """torch.nn.functional.conv2d, and what the epilogue asks for as further operators."""

    name, ours = "torch", False

    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    def available(self) -> str | None:
        return None if peers.has_torch_cuda() else "torch with CUDA is not installed"

    def variants(self, problem: Problem) -> Iterator[Variant]:
        yield Variant("conv2d", partial(self._prepare, problem))

    def transformed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """What is done with the function before it is run."""
        return function

    def _prepare(self, problem: Problem) -> Prepared:
        import torch

        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        torch.backends.cudnn.benchmark = True
        torch.cuda.set_stream(torch.cuda.ExternalStream(self._bench.timer.handle))
        arrays = [torch.from_dlpack(tensor) for tensor in problem.tensors()]
        function = self.transformed(partial(_conv, torch.nn.functional, problem))
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


def _conv(functional: Any, problem: Problem, x: Any, w: Any, *rest: Any) -> Any:
    spec, epilogue, left = problem.spec, problem.epilogue, list(rest)
    top, side, bottom, right = spec.padding
    if (top, side) != (bottom, right):
        x, top, side = functional.pad(x, (side, right, top, bottom)), 0, 0
    bias = left.pop(0) if epilogue.bias else None
    y = functional.conv2d(x, w, bias, spec.stride, (top, side), spec.dilation, spec.groups)
    y = y + left.pop(0) if epilogue.residual else y
    return functional.relu(y) if epilogue.relu else y
