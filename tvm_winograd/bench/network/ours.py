"""Our networks as providers: as one CUDA graph, and launched kernel by kernel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tvm_winograd.choose.options import Options, Wishes
from tvm_winograd.codegen.artifact import Artifact
from tvm_winograd.compiler import compile as compile_model
from tvm_winograd.deploy.runtime import Runner
from tvm_winograd.errors import UnsupportedError
from tvm_winograd.gpu import Hardware
from tvm_winograd.measure.builds import Build
from tvm_winograd.shapes import ConvSpec
from tvm_winograd.truth.tolerances import network_ratio

from .network import Network, Subject, arrays
from .provider import Bench, Prepared

_ARTIFACT = "artifact"


class Ours:
    """A network as it is deployed: all but the first and last kernel in one CUDA graph."""

    name, ours, graph = "ours", True, True

    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    def available(self) -> str | None:
        return None

    def build(self, subject: Subject) -> Build | None:
        if subject.artifact:
            return None
        return partial(compile_into, subject, self._bench.hardware, self._bench.wishes, self.graph)

    def prepare(self, network: Network, folder: Path | None) -> Prepared:
        place = Path(network.subject.what) if folder is None else folder / _ARTIFACT
        artifact = Artifact(place)
        self._check_kind(artifact)
        runner = artifact.load()
        assert isinstance(runner, Runner)
        inputs, result, stream = network.tensors(), [None], self._bench.timer.handle

        def run() -> None:
            result[0] = runner.run(*inputs, stream=stream)

        module = runner.module
        layers = [
            (ConvSpec.from_key(m["spec"]), m["algorithm"], m.get("math")) for m in module["layers"]
        ]
        return Prepared(
            call=run,
            output=lambda: arrays(result[0]),
            ratio=network_ratio(layers),
            memory_bytes=module["planned_bytes"],
            config=described(module),
            math=", ".join(sorted({m.get("math", "") for m in module["layers"]})),
            module=module,
        )

    def _check_kind(self, artifact: Artifact) -> None:
        """Refuses an artifact that was given and is of the other kind."""
        captured = any(module["cuda_graph"] for module in artifact.manifest["modules"])
        if self._bench.hardware.kind == "cuda" and captured != self.graph:
            kind, name = ("with", Ours.name) if captured else ("without", OursKernels.name)
            raise UnsupportedError(
                f"{artifact.path} was compiled {kind} a CUDA graph: its provider is {name}"
            )


class OursKernels(Ours):
    """The same kernels, launched one by one by TVM's virtual machine."""

    name, graph = "ours-kernels", False


NAMES = (Ours.name, OursKernels.name)


def compile_into(
    subject: Subject, hardware: Hardware, wishes: Wishes, graph: bool, folder: Path
) -> None:
    """Compiles a subject for one architecture into `folder`/artifact."""
    on_gpu = hardware.kind == "cuda"
    options = Options(
        **vars(wishes),
        target="cuda" if on_gpu else "llvm",
        arch=hardware.arch if on_gpu else None,
        ptx=False,
        cuda_graph=graph,
    )
    compile_model(subject.load(), output=folder / _ARTIFACT, options=options)


def described(module: Mapping[str, Any]) -> str:
    """Which kernels the convolutions take, in which layout, and what the CUDA graph holds."""
    kernels = Counter(layer["kernel"] for layer in module["layers"])
    text = ", ".join(f"{count} {name}" for name, count in kernels.most_common())
    if layout := module["layout"]:
        text += f"; {layout['chosen']}"
    if graph := module["cuda_graph"]:
        calls = graph["captured"] + graph["launched"]
        text += f"; {graph['captured']} of {calls} calls in {graph['regions']} CUDA graph"
    return text
