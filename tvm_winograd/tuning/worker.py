"""The process that runs candidates: `python -m tvm_winograd.tuning.worker`, JSON line by line.

A request names a library, its packed weights and a problem's folder; the answer is a status with
a time, an error, a message. A candidate that hangs, crashes or poisons the CUDA context costs
this process only: `runner.Worker` ends it and starts another.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from ..codegen import build
from ..measure.cuda_timing import CudaTimer, Plan
from ..truth import reference
from .problem import META, WANT, load, numpy_dtype

_PR_SET_PDEATHSIG = 1
_REPEATS = 10
_SHOWN = 300  # characters of an error, its end
# What TVM raises when a library does not load, a launch fails or an argument does not fit.
_RUN_ERRORS = (RuntimeError, ValueError, TypeError, AttributeError, OSError)


def main() -> None:
    """Answers requests until its input ends; ends with its parent, whatever it is doing."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print must not mix with answers
    import tvm  # noqa: F401  the seconds it takes are not a candidate's

    _answer(answers, {"status": "ready"})
    problems: dict[str, _Data] = {}
    for line in sys.stdin:
        request = json.loads(line)
        folder = request["problem"]
        if folder not in problems:
            problems.clear()  # one at a time: they may take gigabytes
            problems[folder] = _Data(Path(folder))
        try:
            answer = _measure(request, problems[folder])
        except _RUN_ERRORS as error:
            text = f"{type(error).__name__}: {' '.join(str(error).split())[-_SHOWN:]}"
            _answer(answers, {"status": "launch error", "message": text})
            os._exit(1)  # freeing memory in a broken CUDA context would abort
        _answer(answers, answer)


class _Data:
    """A problem's arrays on its device."""

    def __init__(self, folder: Path) -> None:
        import tvm

        meta = json.loads((folder / META).read_text(encoding="utf-8"))
        self.on_gpu = meta["device"] == "cuda"
        if self.on_gpu:
            build.ensure_cuda_codegen()  # loads TVM's CUDA runtime
        self.device = tvm.device(meta["device"], 0)
        arrays = {n: load(folder / f"{n}.npy", dtype) for n, dtype in meta["inputs"].items()}
        self.x = tvm.runtime.tensor(arrays.pop("x"), self.device)
        self.rest = [tvm.runtime.tensor(a, self.device) for a in arrays.values()]
        self.want = np.load(folder / WANT, allow_pickle=False)
        dtype = numpy_dtype(meta["out_dtype"])
        bad = np.iinfo(dtype).min if dtype.kind == "i" else np.nan
        self.poison = np.full(meta["out_shape"], bad, dtype)


def _measure(request: dict[str, Any], data: _Data) -> dict[str, Any]:
    """Run once on poisoned memory, compare, and only then time."""
    import tvm

    weights = load(Path(request["weights"]), request["weights_dtype"])
    module = tvm.runtime.load_module(request["library"])
    packed = tvm.runtime.tensor(weights, data.device)
    out = tvm.runtime.tensor(data.poison, data.device)
    arguments = [data.x, packed, *data.rest, out]
    module["main"](*arguments)
    data.device.sync()
    first = out.numpy()
    found = reference.relative_error(first, data.want)
    if not found <= request["limit"]:
        message = f"relative error {found:.2e}, limit {request['limit']:.0e}"
        return {"status": "wrong result", "error": found, "message": message}
    us = _microseconds(module, data, arguments, request["seconds"])
    if not np.array_equal(first, out.numpy()):
        return {"status": "wrong result", "error": found, "message": "a second run differs"}
    return {"status": "ok", "us": us, "error": found}


def _microseconds(module: Any, data: _Data, arguments: list[Any], seconds: float) -> float:
    """The median time of a call, L2 warm; `seconds` are spent on it, and as long before it.

    On a GPU the calls are in a CUDA graph: back to back, a kernel of a few microseconds is faster
    than the host that launches it. On a CPU ten repeats, one call after the other.
    """
    if data.on_gpu:
        main, milliseconds = module["main"], 1e3 * seconds
        plan = Plan(warmup_ms=milliseconds, total_ms=milliseconds)
        return _timer().measure(lambda: main(*arguments), plan=plan).us
    each = max(1, int(1e3 * seconds / _REPEATS))
    timer = module.time_evaluator("main", data.device, repeat=2 * _REPEATS, min_repeat_ms=each)
    return float(np.median(timer(*arguments).results[_REPEATS:])) * 1e6


@functools.cache
def _timer() -> CudaTimer:
    """One for the life of the process."""
    return CudaTimer()


def _answer(stream: TextIO, value: dict[str, Any]) -> None:
    stream.write(json.dumps(value) + "\n")
    stream.flush()


if __name__ == "__main__":
    main()
