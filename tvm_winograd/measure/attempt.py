"""What becomes of a provider that refuses or breaks: the status and note of its row."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from ..errors import DeviceError, TvmWinogradError, UnsupportedError

T = TypeVar("T")
# refused: it cannot be computed; wrong: it was computed, badly, and not timed; failed: it broke
# while it was compiled, prepared or run
STATUSES = ("ok", "refused", "wrong", "failed")
# What TVM, torch and our own code raise when something cannot be built, loaded or launched; files
# that cannot be written or found too (a full disk, no compiler).
_FAILURES = (
    RuntimeError,
    ValueError,
    TypeError,
    MemoryError,
    AssertionError,
    AttributeError,
    LookupError,
    OSError,
    subprocess.SubprocessError,
)


class WrongResult(TvmWinogradError):
    """Code of ours computed something else than it should."""


class Device(Protocol):
    """Where work is queued: a timer."""

    def synchronize(self) -> None:
        """Waits for all of it.

        Raises:
            DeviceError: the device is lost.
        """


@dataclass(frozen=True)
class Trouble:
    """Why there is nothing to measure."""

    status: str  # "refused" or "failed", of STATUSES
    note: str


def attempt(work: Callable[[], T]) -> T | Trouble:
    """Returns the result of `work`, or what it raised."""
    try:
        return work()
    except UnsupportedError as refusal:
        return Trouble("refused", one_line(refusal))
    except _FAILURES as failure:
        return Trouble("failed", one_line(failure))


def attempt_on_gpu(work: Callable[[], T], who: str, ours: bool, timer: Device) -> T | Trouble:
    """Does the same for a provider called `who` on the GPU; a failure of ours is raised.

    Raises:
        DeviceError: the context is lost: every later call fails, and no result is to be trusted.
    """
    if ours:
        try:
            return work()
        except UnsupportedError as refusal:
            return Trouble("refused", one_line(refusal))
    got = attempt(work)
    if isinstance(got, Trouble) and got.status == "failed":
        try:
            timer.synchronize()
        except DeviceError as lost:
            raise DeviceError(
                f"{who} broke the GPU's context, measure the rest without it: {got.note}"
            ) from lost
    return got


def one_line(error: BaseException, shown: int = 300) -> str:
    """Shortens an error's message to its begin and its end, with its type unless it is ours."""
    kind = "" if isinstance(error, TvmWinogradError) else f"{type(error).__name__}: "
    text, half = " ".join(str(error).split()), shown // 2
    return kind + (text if len(text) <= shown else f"{text[:half]} ... {text[-half:]}")
