"""What is tuned: the distinct convolutions of a model, as the compiler lowers them, or shapes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ..choose.select import choose
from ..errors import SpecError
from ..frontend import Model
from ..gpu import Hardware
from ..passes.lower_convs import Layer
from ..passes.pipeline import choose_layers
from ..shapes import ConvSpec, Epilogue

# Behind a convolution of the networks we know; a result holds for all of them.
_USUAL = ("none", "bias", "relu", "bias+relu", "bias+residual+relu", "bias+relu6")
_MEASURED = "bias+relu"  # of a shape without a network


@dataclass(frozen=True)
class Task:
    """One convolution: it is measured with `epilogue`, and its results hold for `others` too."""

    spec: ConvSpec
    epilogue: Epilogue
    others: tuple[Epilogue, ...]
    layers: tuple[str, ...] = ()  # of the model

    @property
    def name(self) -> str:
        return f"{self.spec.key()} {self.epilogue.key()}"


def is_shape(text: str) -> bool:
    """Whether an argument means a convolution rather than a model."""
    return re.match(r"n\d+c\d+h", text) is not None


def model_tasks(model: Model, hardware: Hardware) -> list[Task]:
    """The distinct convolutions of a model, in order, with their most frequent epilogue."""
    layers, _ = choose_layers(
        model.mod,
        model.params,
        hardware,
        lambda name, spec, epilogue: choose(spec, epilogue, hardware),
    )
    by_spec: dict[ConvSpec, list[Layer]] = {}
    for layer in layers:
        by_spec.setdefault(layer.spec, []).append(layer)
    return [_task(spec, group) for spec, group in by_spec.items()]


def shape_tasks(texts: Sequence[str], batch: int | None = None) -> list[Task]:
    """Tasks of texts `SPEC[:EPILOGUE]`, e.g. `n8c64h56w56k64r3s3_st1_..._NCHW:bias+relu`.

    Raises:
        SpecError: a text of another form.
    """
    tasks = []
    for text in texts:
        if not is_shape(text):
            raise SpecError(f"{text!r}: give one model, or convolutions by their ConvSpec.key()")
        key, _, epilogue = text.partition(":")
        spec = ConvSpec.from_key(key)
        spec = replace(spec, n=batch) if batch is not None else spec
        tasks.append(_spread(spec, Epilogue.from_key(epilogue or _MEASURED), (), ()))
    return list(dict.fromkeys(tasks))


def _task(spec: ConvSpec, layers: Sequence[Layer]) -> Task:
    counts = Counter(layer.epilogue for layer in layers)
    epilogue, _ = counts.most_common(1)[0]
    return _spread(spec, epilogue, counts, (layer.name for layer in layers))


def _spread(
    spec: ConvSpec, epilogue: Epilogue, more: Iterable[Epilogue], layers: Iterable[str]
) -> Task:
    others = dict.fromkeys([*more, *map(Epilogue.from_key, _USUAL)])
    others.pop(epilogue, None)
    return Task(spec, epilogue, tuple(others), tuple(layers))
