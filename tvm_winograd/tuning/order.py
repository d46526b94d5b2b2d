"""Which candidates are measured next: defaults, then the estimate, then MetaSchedule's model."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from tvm.s_tir import meta_schedule as ms

from ..gpu import Hardware, make_target
from ..ir.tvm_027 import tune_context
from .spaces import Candidate

_WARM = 8  # measured candidates before the model is asked


class Order:
    """The order of one convolution's candidates.

    While every candidate will be measured the order is that of the space. When there are more
    than trials, MetaSchedule's XGBoost model, trained on what was measured so far (features of
    the scheduled IR), ranks the rest, and one in eight is still taken in the space's order.
    """

    def __init__(self, candidates: Sequence[Candidate], trials: int, hardware: Hardware) -> None:
        self._left = list(candidates)
        self._model = _Model(hardware, candidates[0]) if len(candidates) > trials else None

    def learn(self, measured: Sequence[tuple[Candidate, float | None]]) -> None:
        """Measured candidates and their microseconds (None: failed)."""
        done = {id(candidate) for candidate, _ in measured}
        self._left = [c for c in self._left if id(c) not in done]
        if self._model is not None and measured:
            self._model.learn(measured)

    def next(self, count: int) -> list[Candidate]:
        """At most `count` candidates, none of them given or learned about before."""
        chosen = self._left[:count]
        if self._model is not None and self._model.samples >= _WARM and self._left:
            curious = max(1, count // 8)
            chosen = self._model.rank(self._left)[: count - curious]
            chosen += [c for c in self._left if c not in chosen][:curious]
        self._left = [c for c in self._left if c not in chosen]
        return chosen


class _Model:
    """MetaSchedule's XGBModel for one convolution, whatever program a candidate comes from."""

    def __init__(self, hardware: Hardware, first: Candidate) -> None:
        for name in ("xgboost", "tvm.s_tir.meta_schedule.cost_model.xgb_model"):
            logging.getLogger(name).setLevel(logging.ERROR)
        # 50 rounds without gain, the default, cost seconds and change little with so few samples
        self._model = ms.cost_model.XGBModel(num_warmup_samples=0, early_stopping_rounds=10)
        self._context = tune_context(first.schedule.mod, make_target(hardware), "tvm_winograd")
        self._news: list[tuple[Candidate, float]] = []  # it is trained when it is asked
        self.samples = 0

    def learn(self, measured: Sequence[tuple[Candidate, float | None]]) -> None:
        good = [(c, us) for c, us in measured if us is not None]  # a failure has no time
        self._news += good
        self.samples += len(good)

    def rank(self, candidates: list[Candidate]) -> list[Candidate]:
        if self._news:
            results = [ms.runner.RunnerResult([us * 1e-6], None) for _, us in self._news]
            self._model.update(self._context, [_measurable(c) for c, _ in self._news], results)
            self._news.clear()
        scores = self._model.predict(self._context, [_measurable(c) for c in candidates])
        pairs = zip(scores, candidates, strict=True)
        return [c for _, c in sorted(pairs, key=lambda pair: -pair[0])]


def _measurable(candidate: Candidate) -> Any:
    return ms.MeasureCandidate(candidate.schedule, [])
