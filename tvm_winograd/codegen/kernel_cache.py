"""Compiled CUDA code kept between runs, in a folder of the user's that stays below a size.

A name is the hash of everything that the code depends on: source, architecture, flags, versions of
compiler and headers. Files appear whole or not at all, so any number of processes may share the
folder; what is damaged counts as missing.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "TVM_WINOGRAD_CACHE"
OFF = "off"  # as the variable's value
MOST_BYTES = 1 << 30
_VERSION = "1"  # of the files' form
_DIGEST = hashlib.sha256().digest_size
_LENGTH = 8  # bytes of the log's length


@dataclass(frozen=True)
class KernelCache:
    """A folder of binaries with their compiler's logs."""

    folder: Path
    most_bytes: int = MOST_BYTES

    def get(self, key: str) -> tuple[bytes, str] | None:
        """(binary, log) kept under `key`, or None."""
        path = self.folder / key
        try:
            data = path.read_bytes()
            os.utime(path)  # the least recently used go first
        except OSError:
            return None
        digest, rest = data[:_DIGEST], data[_DIGEST:]
        if len(rest) < _LENGTH or hashlib.sha256(rest).digest() != digest:
            return None
        end = _LENGTH + int.from_bytes(rest[:_LENGTH], "little")
        return rest[end:], rest[_LENGTH:end].decode("utf-8", "replace")

    def put(self, key: str, binary: bytes, log: str) -> None:
        """Keeps a binary and its log; where the folder cannot be written, nothing is kept."""
        text = log.encode()
        rest = len(text).to_bytes(_LENGTH, "little") + text + binary
        with contextlib.suppress(OSError):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self.folder, prefix=".new-")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(hashlib.sha256(rest).digest() + rest)
                os.replace(name, self.folder / key)
            except BaseException:
                os.unlink(name)
                raise
            self._prune()

    def _prune(self) -> None:
        """Deletes the least recently used until the rest fits."""
        found = []
        for path in self.folder.iterdir():
            with contextlib.suppress(OSError):  # another process was faster
                stat = path.stat()
                found.append((stat.st_mtime, stat.st_size, path))
        total = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if total <= self.most_bytes:
                return
            path.unlink(missing_ok=True)
            total -= size


def user_cache() -> KernelCache | None:
    """The cache of this user: TVM_WINOGRAD_CACHE, else ~/.cache/tvm_winograd; None if it is off."""
    given = os.environ.get(VARIABLE)
    if given == OFF:
        return None
    try:
        return KernelCache(Path(given) if given else Path.home() / ".cache" / "tvm_winograd")
    except RuntimeError:  # no home
        return None


def key_of(parts: Iterable[str]) -> str:
    """The name for code that depends on nothing but `parts`."""
    made = hashlib.sha256()
    for part in (_VERSION, *parts):
        data = part.encode()
        made.update(len(data).to_bytes(_LENGTH, "little") + data)
    return made.hexdigest()
