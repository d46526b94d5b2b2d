"""torch as a provider: eager, as a CUDA graph, through torch.compile; cudnn.benchmark, TF32 off."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from tvm_winograd import precision
from tvm_winograd.measure.builds import Build
from tvm_winograd.truth import peers

from .network import Network, Subject
from .provider import Bench, Prepared

Function = Callable[[], Any]  # runs the network on its input and returns torch's output


class Torch:
    """The network of `torch_networks`, operator by operator."""

    name, ours = "torch", False
    compiles = False  # whether `made` takes a time worth a column

    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    def available(self) -> str | None:
        return None if peers.has_torch_cuda() else "torch with CUDA is not installed"

    def build(self, subject: Subject) -> Build | None:
        return None

    def prepare(self, network: Network, folder: Path | None) -> Prepared:
        import torch

        net, (x,) = network.twin, network.torch_inputs()
        result: list[Any] = [None]
        torch.cuda.synchronize()
        with self._around():
            start = time.perf_counter()
            function, memory = self.made(net, x)
            seconds = time.perf_counter() - start

        def run() -> None:
            result[0] = function()

        return Prepared(
            call=run,
            output=lambda: [result[0].cpu().numpy()],
            memory_bytes=memory,
            compile_s=seconds if self.compiles else None,
            config=f"torch {torch.__version__}, cudnn.benchmark",
            around=self._around,
        )

    def made(self, net: Any, x: Any) -> tuple[Function, int]:
        """Makes what runs `net` on `x`, having run before; counts the bytes of a run's memory."""

        def function() -> Any:
            return net(x)

        function()  # cudnn.benchmark tries algorithms, which is no part of a run
        return function, peak_bytes(function)

    @contextmanager
    def _around(self) -> Iterator[None]:
        """On the timer's stream, without autograd."""
        import torch

        stream = torch.cuda.ExternalStream(self._bench.timer.handle)
        with torch.cuda.stream(stream), torch.inference_mode():
            yield


class TorchGraph(Torch):
    """Eager torch, captured in one CUDA graph."""

    name = "torch-graph"

    def made(self, net: Any, x: Any) -> tuple[Function, int]:
        import torch

        graph, kept = torch.cuda.CUDAGraph(), []
        for _ in range(3):  # cudnn.benchmark chooses outside the capture
            net(x)

        def capture() -> None:
            with torch.cuda.graph(graph):
                kept.append(net(x))

        memory = peak_bytes(capture)

        def function() -> Any:
            graph.replay()
            return kept[0]

        return function, memory


class TorchCompile(Torch):
    """torch.compile with mode="reduce-overhead", which makes a CUDA graph too."""

    name, compiles = "torch-compile", True

    def made(self, net: Any, x: Any) -> tuple[Function, int]:
        import torch

        torch.compiler.reset()  # networks of one class would count as recompilations of one
        compiled = torch.compile(net, mode="reduce-overhead", dynamic=False)

        def function() -> Any:
            return compiled(x)

        function()  # compiles and warms up; the second run is recorded, later ones are replayed
        memory = peak_bytes(function)
        function()
        return function, memory


class TorchCompileTf32(TorchCompile):
    """The same with channels last and TF32, which is as exact as 11 bits of a factor allow."""

    name = "torch-compile-tf32"

    def prepare(self, network: Network, folder: Path | None) -> Prepared:
        coarser = precision.error_of("tf32") / precision.error_of("fma")
        made = super().prepare(network, folder)
        return replace(made, math="tf32", ratio=made.ratio * coarser)

    def made(self, net: Any, x: Any) -> tuple[Function, int]:
        import torch

        last = torch.channels_last
        own = copy.deepcopy(net).to(memory_format=last)  # the other providers keep theirs
        return super().made(own, x.to(memory_format=last))

    @contextmanager
    def _around(self) -> Iterator[None]:
        import torch

        places = torch.backends.cudnn, torch.backends.cuda.matmul
        before = [place.allow_tf32 for place in places]
        try:
            for place in places:
                place.allow_tf32 = True
            with super()._around():
                yield
        finally:
            for place, allowed in zip(places, before, strict=True):
                place.allow_tf32 = allowed


def peak_bytes(work: Callable[[], Any]) -> int:
    """Counts the bytes that `work` allocates at most at a time."""
    import torch

    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    work()
    torch.cuda.synchronize()
    return int(torch.cuda.max_memory_allocated() - before)
