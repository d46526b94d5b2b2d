"""Stages of a schedule: named functions that can be watched, with the loops they get and leave.

    with watched() as seen:
        kernel.schedule(sch, config, hardware)
    for stage in seen:
        print(stage.name, stage.loops, stage.script)

Nobody watches while a network is compiled or tuned: a stage is then the plain call of its function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_LOOPS = "loops: "


@dataclass(frozen=True)
class Seen:
    """What a stage has left."""

    name: str  # of the stage, e.g. "winograd_fused.output.bind"
    loops: str  # which loops it gets and which it leaves
    script: str  # the schedule's functions behind it, as TIR script


_WATCHER: ContextVar[list[Seen] | None] = ContextVar("watcher", default=None)


def stage(
    function: Callable[Concatenate[Any, P], R],
) -> Callable[Concatenate[Any, P], R]:
    """`function(sch, ...)`, which `watched` shows after each call.

    Raises:
        TypeError: its docstring has not one line that starts with "loops: ".
    """
    loops = loops_line(function)
    name = f"{function.__module__.partition('schedules.')[2]}.{function.__name__.lstrip('_')}"

    @wraps(function)
    def run(sch: Any, *args: P.args, **kwargs: P.kwargs) -> R:
        result = function(sch, *args, **kwargs)
        if (seen := _WATCHER.get()) is not None:
            seen.append(Seen(name, loops, sch.mod.script()))
        return result

    return run


def loops_line(function: Callable[..., Any]) -> str:
    """What the docstring of a stage says of its loops, without "loops: "."""
    found = [line.strip() for line in (function.__doc__ or "").splitlines()]
    found = [line.removeprefix(_LOOPS) for line in found if line.startswith(_LOOPS)]
    if len(found) != 1:
        raise TypeError(
            f'{function.__qualname__}: {len(found)} docstring lines start with "{_LOOPS}"; '
            "a stage has one"
        )
    return found[0]


@contextmanager
def watched() -> Iterator[list[Seen]]:
    """The stages that run inside, in their order, as they come."""
    seen: list[Seen] = []
    token = _WATCHER.set(seen)
    try:
        yield seen
    finally:
        _WATCHER.reset(token)
