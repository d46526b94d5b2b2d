"""A loaded model whose batch varies from run to run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

from .batches import Batches


class OneBatch(Protocol):
    """What a Runner of one batch offers."""

    @property
    def module(self) -> Mapping[str, Any]: ...

    def run(self, *inputs: Any, stream: Any = None) -> Any: ...

    @property
    def time(self) -> Callable[..., list[float]]: ...


R = TypeVar("R", bound=OneBatch)


class BatchRunner(Generic[R]):
    """A loaded model for a range of batches, made by `load`: one Runner per bucket.

    Buckets share parameters; each has its own memory for activations and its own CUDA graph.

    Attributes:
        batches: what the batch may be, and the buckets' sizes.
        manifest, device, labels: as of a Runner.
    """

    def __init__(self, batches: Batches, runners: Sequence[R]) -> None:
        """Use `load`."""
        self.batches = batches
        self.manifest, self.device, self.labels = (
            getattr(runners[0], name) for name in ("manifest", "device", "labels")
        )
        self._runners = {int(runner.module["batch"]): runner for runner in runners}

    def at(self, batch: int) -> R:
        """The Runner of the smallest bucket that holds `batch` images.

        Raises:
            InputError: none does.
        """
        return self._runners[self.batches.bucket(batch)]

    def run(self, *inputs: Any, stream: Any = None) -> Any:
        """As `Runner.run`, with any batch of the range: as many images out as in."""
        return self._for(inputs).run(*inputs, stream=stream)

    def time(self, *inputs: Any, **options: Any) -> list[float]:
        """As `Runner.time`."""
        return self._for(inputs).time(*inputs, **options)

    def _for(self, inputs: Sequence[Any]) -> R:
        shape = getattr(inputs[0], "shape", None) if inputs else None
        # what has no batch is the Runner's to refuse
        return self.at(int(shape[0]) if shape else self.batches.high)
