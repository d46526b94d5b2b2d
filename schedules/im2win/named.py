"""Named configs: a config of im2win with each of the papers' optimisations left out in turn."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from .config import Im2win


def ablation(full: Im2win) -> list[tuple[str, Im2win]]:
    """(what is left out, config): the papers' optimisations, each switched off in turn."""
    plain = replace(full, copies="plain", buffers=1)
    # no other thread uses a window that is in shared memory
    alone: dict[str, Any] = {"bk": full.tk, "bh": 32 * full.th, "bw": full.tw, "lanes": "hhhhh"}
    one: dict[str, Any] = {"bk": 16, "bh": 2, "bw": 8, "tk": 1, "th": 1, "tw": 1, "lanes": "wkwkw"}
    # a thread's pixels lie in different rows: no window of theirs overlaps
    column: dict[str, Any] = {"bh": 8, "th": 8, "bw": 8, "tw": 1, "lanes": "wkwkw"}
    overlap = [] if full.flat else [("overlap of windows", replace(full, **column))]
    return [
        ("nothing", full),
        ("shared memory", replace(plain, shared=False, flat=0)),
        ("tiling", replace(full, **alone, buffers=min(2, full.buffers))),
        ("micro-kernel", replace(full, **one)),
        *overlap,
        ("double buffer", replace(plain, copies="registers")),
        ("prefetch", plain),
    ]
