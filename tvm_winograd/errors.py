"""The errors a user can meet. Every message says what was got, what is supported, what to do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

_SHOWN = 1000  # characters of an error of TVM's
# what only TVM's own texts hold
_RAW = re.compile(r"Check failed|\bR\.|\bT\.\w|tirx|relax|ScheduleError|0x[0-9a-f]{6}")
_DUMP = "\nError in pass"  # behind it TVM prints the module, which would hide the reason


class TvmWinogradError(ValueError):
    """Base of every error this package raises on purpose."""


class SpecError(TvmWinogradError):
    """A convolution that cannot exist (empty output, negative padding, unknown dtype)."""


class UnsupportedError(TvmWinogradError):
    """A possible request that no kernel, target or dtype of this package covers."""


class ModelError(TvmWinogradError):
    """A model or weight file that cannot be read or understood."""


class BuildError(TvmWinogradError):
    """Device code could not be produced: no compiler, kernel too large, text and no code."""


class ArtifactError(TvmWinogradError):
    """An artifact folder that is damaged, incomplete or does not fit this machine."""


class InputError(TvmWinogradError):
    """An input array or file of the wrong shape, dtype or kind."""


class DeviceError(TvmWinogradError):
    """A call of CUDA, or of a library on it, that failed; or no GPU where one is needed."""


class LogError(TvmWinogradError):
    """A tuning table or journal that cannot be locked or written."""


@contextmanager
def as_build_error(doing: str) -> Iterator[None]:
    """What TVM raises about a module it cannot take becomes a BuildError; ours stay."""
    try:
        yield
    except TvmWinogradError:
        raise
    except (RuntimeError, ValueError, TypeError) as error:  # TVM's InternalError is a RuntimeError
        reason = str(error).partition(_DUMP)[0].strip()
        if _RAW.search(reason):  # it would say nothing to a user; the cause is kept behind it
            reason = "TVM gives an internal error; report it with the model"
        raise BuildError(f"{doing}: {reason[:_SHOWN]}") from error
