"""The function that chooses the kernels of a network as its user wishes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import UnsupportedError
from ..gpu import Hardware
from ..shapes import ConvSpec, Epilogue
from ..tables import lookup as logs
from .options import Wishes
from .select import Choice, choose, kernels_of

Chooser = Callable[[str, ConvSpec, Epilogue], Choice]


def make_chooser(
    hardware: Hardware,
    wishes: Wishes,
    progress: Callable[[str], None] = lambda text: None,
    *,
    tables: bool = True,
) -> Chooser:
    """The function (layer name, spec, epilogue) -> Choice of one compilation.

    Args:
        progress: told of unreadable lines, and where `algorithm` does not apply.
        tables: look at tuning tables. Without, choices for two layouts are comparable: a table
            may know one of them only.
    Raises:
        UnsupportedError: an algorithm not on this hardware.
        InputError: `logs` does not exist.
    """
    check_wishes(hardware, wishes)
    rows = _rows(hardware, wishes.logs, progress) if tables else ()
    options: dict[str, Any] = {"rows": rows, "limits": wishes.limits}

    @functools.cache  # networks repeat their convolutions, and choosing one takes 50 ms
    def ask_default(algorithm: str, spec: ConvSpec, epilogue: Epilogue) -> Choice:
        return choose(spec, epilogue, hardware, algorithm=algorithm, **options)

    def chooser(name: str, spec: ConvSpec, epilogue: Epilogue) -> Choice:
        def ask(algorithm: str) -> Choice:
            if (config := wishes.configs.get(name)) is None:
                return ask_default(algorithm, spec, epilogue)
            return choose(spec, epilogue, hardware, algorithm=algorithm, config=config, **options)

        try:
            return ask(wishes.layers.get(name, wishes.algorithm))
        except UnsupportedError as error:
            if name in wishes.layers or wishes.algorithm == "auto":
                raise UnsupportedError(f"{name}: {error}") from error
            progress(f"{name}: {error}; chosen as for auto")
            return ask("auto")

    return chooser


def check_wishes(hardware: Hardware, wishes: Wishes) -> None:
    """What needs no model to be refused.

    Raises:
        UnsupportedError: an algorithm not on this hardware.
        InputError: `logs` does not exist.
    """
    for algorithm in (wishes.algorithm, *wishes.layers.values()):
        kernels_of(algorithm, hardware)
    if wishes.logs is not None:
        logs.folder_of(wishes.logs)


def _rows(
    hardware: Hardware, folder: str | Path | None, progress: Callable[[str], None]
) -> list[logs.Row]:
    places = [logs.shipped_folder()]
    if folder is not None:
        places.insert(0, logs.folder_of(folder))
    rows, complaints = logs.read_places(places, hardware.arch)
    for complaint in complaints:
        progress(complaint)
    if made_up := sum(row.gpu == logs.MOCK for row in rows):
        progress(f"{made_up} rows of {folder} have made-up times (tune --mock): for tests alone")
    return rows
