"""A folder takes the place of another: at every moment the old or the new one is there.

Linux exchanges two names at once. Elsewhere, or on a file system that cannot, there are two
renames, and what interrupts them is undone.
"""

from __future__ import annotations

import ctypes
import glob
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

_HERE = -100  # AT_FDCWD
_EXCHANGE = 2  # RENAME_EXCHANGE
_LOCK = "in-use"


def put_in_place(new: Path, path: Path, old: Path) -> None:
    """Rename `new` to `path`; what is at `path` becomes `old`, or `new`.

    Raises:
        OSError: it cannot be; `path` is as it was.
    """
    if not path.exists():
        os.rename(new, path)
        return
    if exchange(new, path):
        return
    try:
        os.rename(path, old)
        os.rename(new, path)
    except BaseException:  # an interrupt between the two as well
        if not path.exists() and old.exists():
            os.rename(old, path)
        raise


def exchange(one: Path, other: Path) -> bool:
    """Swap the names of two folders at once; whether the system can."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    names = os.fsencode(one), os.fsencode(other)
    return bool(rename(_HERE, names[0], _HERE, names[1], _EXCHANGE) == 0)


@contextmanager
def scratch_beside(path: Path) -> Iterator[Path]:
    """A folder beside `path`, locked while in use and removed after."""
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}-") as folder:
        with FileLock(Path(folder, _LOCK)):
            yield Path(folder)


def remove_leftovers(path: Path) -> None:
    """Remove the scratch folders of `path` whose process was killed: nobody holds their lock."""
    for folder in path.parent.glob(f".{glob.escape(path.name)}-*"):
        lock = folder / _LOCK
        if not lock.is_file():
            continue  # just made, or not ours
        with suppress(Timeout, OSError):
            with FileLock(lock, timeout=0):
                shutil.rmtree(folder, ignore_errors=True)
