"""A network with a batch: where it comes from, its input, and what it computes in float64."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tvm_winograd.check.verify import load_source
from tvm_winograd.codegen.artifact import Artifact
from tvm_winograd.errors import InputError, UnsupportedError
from tvm_winograd.frontend import Model, load_model
from tvm_winograd.frontend.builtin import BUILTINS
from tvm_winograd.frontend.weights import random_input
from tvm_winograd.truth import peers
from tvm_winograd.truth.evaluate import evaluate
from tvm_winograd.truth.reference import worst_error

_PART = 16  # images that float64 takes at a time: its activations are twice as large


@dataclass(frozen=True)
class Subject:
    """What a user names; small enough to be sent to another process, which loads it again."""

    what: str  # a built-in name, an .onnx or .pt2 file; or the folder of an artifact
    batch: int | None = None  # images per run; None: the model's, or the artifact's
    weights: str | None = None  # .safetensors or .npz
    artifact: bool = False  # `what` is one

    def load(self) -> Model:
        """Raises:
        TvmWinogradError: there is no such model, artifact or file of weights.
        """
        if not self.artifact:
            return load_model(self.what, batch=self.batch, weights=self.weights)
        artifact = Artifact(self.what)
        if artifact.manifest["batch"]:
            raise InputError(f"{self.what} is for a range of batches; name one of a single batch")
        return load_source(artifact, weights=self.weights)

    def __str__(self) -> str:
        return self.what if self.batch is None else f"{self.what}, batch {self.batch}"


class Network:
    """A loaded subject with zero-mean images, the same for every provider."""

    def __init__(self, subject: Subject, device: str) -> None:
        """
        Args:
            device: "cuda", or in tests "cpu".
        """
        self.subject, self.model, self._device = subject, subject.load(), device
        rng = np.random.default_rng(1)
        self.inputs = [
            random_input(rng, tensor.shape, tensor.dtype) for tensor in self.model.inputs
        ]

    def tensors(self) -> list[Any]:
        """Copies the inputs to the device, as TVM's tensors."""
        return [on_device(array, self._device) for array in self.inputs]

    @cached_property
    def twin(self) -> Any:
        """torch's network with the same parameters, float32, on the device; TF32 is off from then
        on, and cuDNN chooses its algorithms by trying them.

        Raises:
            UnsupportedError: the model is no built-in one.
        """
        if self.model.source.get("kind") != "builtin" or self.model.name not in BUILTINS:
            raise UnsupportedError(
                f"{self.model.name} is no built-in network: there is no torch network of it"
            )
        import torch

        from .torch_networks import torch_network

        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        torch.backends.cudnn.benchmark = True
        return torch_network(BUILTINS[self.model.name], self.model.params).to(self._device)

    def release(self) -> None:
        """Gives torch's memory on the GPU back."""
        if self.__dict__.pop("twin", None) is not None and self._device == "cuda":
            import torch

            torch.compiler.reset()
            torch.cuda.empty_cache()

    def torch_inputs(self) -> list[Any]:
        """Copies the inputs to the device, as torch's tensors."""
        import torch

        return [torch.from_numpy(array).to(self._device) for array in self.inputs]

    def error(self, outputs: Sequence[np.ndarray]) -> float:
        """Finds the outputs' largest relative Frobenius error; infinite if one is not finite."""
        return worst_error(outputs, self._want)

    @cached_property
    def float32_error(self) -> float:
        """The error of a plain float32 evaluation: torch's, else numpy's."""
        if self._has_twin:
            return worst_error(self._torch_outputs("float32"), self._want)
        model = self.model
        conv = peers.torch_conv if peers.has_torch_cuda() else None
        got = evaluate(model.mod, model.params, self.inputs, dtype="float32", conv=conv)
        return worst_error(got, self._want)

    @cached_property
    def _want(self) -> list[np.ndarray]:
        """The outputs in float64."""
        if self._has_twin:
            return self._torch_outputs("float64")
        model = self.model
        return evaluate(model.mod, model.params, self.inputs, conv=peers.best_conv64())

    @cached_property
    def _has_twin(self) -> bool:
        if not peers.has_torch_cuda():
            return False
        try:
            return self.twin is not None
        except UnsupportedError:
            return False

    def _torch_outputs(self, dtype: str) -> list[np.ndarray]:
        """Computes them part by part: in evaluation mode no image sees another.

        cuDNN chooses its algorithms by rule, not by trying them: the error, and the limits made of
        it, must not depend on what else the GPU is doing.
        """
        import torch

        net = copy.deepcopy(self.twin).to(getattr(torch, dtype))
        (x,) = self.torch_inputs()
        by_rule = torch.backends.cudnn.flags(benchmark=False, allow_tf32=False)
        with torch.inference_mode(), by_rule:
            parts = [net(part.to(getattr(torch, dtype))).cpu() for part in x.split(_PART)]
        return [torch.cat(parts).numpy()]


def on_device(array: np.ndarray, device: str) -> Any:
    """Makes a TVM tensor on the first device of a kind."""
    import tvm

    return tvm.runtime.tensor(array, tvm.device(device, 0))


def arrays(outputs: Any) -> list[np.ndarray]:
    """Copies what a network of TVM's returned."""
    several = outputs if isinstance(outputs, tuple | list) else [outputs]
    return [tensor.numpy() for tensor in several]
