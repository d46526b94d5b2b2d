"""What verification found."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from ..truth.tolerances import IMPORT_RATIO, NETWORK_FLOOR


@dataclass(frozen=True)
class LayerResult:
    """Relative error of one convolution alone."""

    name: str
    algorithm: str
    error: float
    limit: float

    @property
    def ok(self) -> bool:
        return self.error <= self.limit


@dataclass(frozen=True)
class Report:
    """What verification found. `peer` is the direct float32 evaluation we compare with."""

    module: str
    error: float
    peer: str
    peer_error: float
    ratio_limit: float  # of error over peer_error
    layers: list[LayerResult] = field(default_factory=list)
    padding: bool | None = None  # of a bucket: an image does not see the others, nor what is added
    imported: float | None = None  # error of the model's own framework; None: it was not run

    @property
    def ok(self) -> bool:
        exact = self.ratio <= self.ratio_limit and (self.imported or 0.0) <= self.import_limit
        return exact and all(r.ok for r in self.layers) and self.padding is not False

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "ratio": self.ratio, "ok": self.ok}

    @property
    def ratio(self) -> float:
        """How many times what the peer errs."""
        return self.error / self._unit

    @property
    def import_limit(self) -> float:
        return IMPORT_RATIO * self._unit

    @property
    def _unit(self) -> float:
        """The peer's error, which counts as NETWORK_FLOOR where it is smaller."""
        return max(self.peer_error, NETWORK_FLOOR)
