"""What a tuning session has tried, a JSON line per candidate: kills and restarts lose nothing.

<out>/journal/<arch>/<gpu>.jsonl. A candidate is known by its scheduled program, not by its config
alone: after a change of the kernel, or of TVM, it is measured again.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from tvm_winograd.schedules.base.kernel import config_dict

from ..errors import LogError
from ..shapes import ConvSpec, Epilogue
from ..tables.store import locked, slug

_KINDS = {"us": (int, float, type(None)), "error": (int, float, type(None))}  # else text


@dataclass(frozen=True)
class Trial:
    """One candidate and what became of it."""

    spec: str
    epilogue: str
    kernel: str
    config: str  # JSON
    program: str  # TVM's version and structural hash of the scheduled program
    status: str  # "ok" or why it failed
    us: float | None = None
    error: float | None = None
    message: str = ""

    @property
    def key(self) -> tuple[str, ...]:
        return (self.spec, self.epilogue, self.kernel, self.config, self.program)


def journal_path(out: Path, arch: str, gpu: str) -> Path:
    return out / "journal" / arch / f"{slug(gpu)}.jsonl"


def trial(
    spec: ConvSpec, epilogue: Epilogue, kernel: str, config: Any, program: str, **result: Any
) -> Trial:
    text = json.dumps(config_dict(config), sort_keys=True)
    return Trial(spec.key(), epilogue.key(), kernel, text, program, **result)


def read(path: Path) -> tuple[dict[tuple[str, ...], Trial], list[str]]:
    """(the trials by key, complaints); a damaged line costs that line only."""
    found: dict[tuple[str, ...], Trial] = {}
    complaints = []
    text = path.read_bytes().decode("utf-8", errors="replace") if path.exists() else ""
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            one = _trial(json.loads(line))
        except (ValueError, RecursionError) as error:
            complaints.append(f"{path}:{number}: line left out: {str(error)[:200]}")
            continue
        found[one.key] = one
    return found, complaints


def append(path: Path, trials: Iterable[Trial]) -> None:
    """Adds lines, on disk before this returns.

    Raises:
        LogError: they cannot be written; a line cut off by a full disk is skipped by `read`.
    """
    text = "".join(json.dumps(asdict(t)) + "\n" for t in trials)
    with locked(path):
        try:
            with path.open("ab") as file:
                if file.tell() and not _ends_a_line(path):
                    text = "\n" + text
                file.write(text.encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise LogError(
                f"{path}: cannot be written ({error.strerror}); free some space, then start "
                "again: what was measured before is kept"
            ) from error


def _ends_a_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def _trial(record: Any) -> Trial:
    names = {f.name for f in fields(Trial)}
    if not isinstance(record, dict):
        raise ValueError("no JSON object")
    if missing := {"spec", "epilogue", "kernel", "config", "program", "status"} - set(record):
        raise ValueError(f"no {', '.join(sorted(missing))}")
    for name in names & set(record):
        value, kinds = record[name], _KINDS.get(name, (str,))
        if not isinstance(value, kinds) or isinstance(value, bool):
            raise ValueError(f"{name} is a {type(value).__name__}")
    if record["status"] == "ok" and not 0 < (record.get("us") or 0) < math.inf:
        raise ValueError(f"us={record.get('us')}: a positive number is needed")
    ConvSpec.from_key(record["spec"])
    Epilogue.from_key(record["epilogue"])
    return Trial(**{k: v for k, v in record.items() if k in names})
