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
    not_compared: list[str] = field(default_factory=list)  # what was left out, and why
    granted: float = 0.0  # an error that is none, whatever the ratio (tolerances.long_sums)

    @property
    def verdict(self) -> str:
        """ "failed" if anything is wrong, "not compared" if anything was left out, else "ok"."""
        if self._failed:
            return "failed"
        return "not compared" if self.not_compared else "ok"

    @property
    def ok(self) -> bool:
        return self.verdict == "ok"

    @property
    def _failed(self) -> bool:
        exact = self.ratio <= self.ratio_limit or self.error <= self.granted
        numbers = [exact, (self.imported or 0.0) <= self.import_limit]
        return not (all(numbers) and all(r.ok for r in self.layers) and self.padding is not False)

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "ratio": self.ratio, "ok": self.ok, "verdict": self.verdict}

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
