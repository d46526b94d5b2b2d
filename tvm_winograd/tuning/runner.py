"""Builds, checks and times candidates: on this machine's device, or pretending to.

Building goes through `measure.builds`, the one pool of processes. Running goes through a process
of its own, which is no pool: one candidate at a time is on the device, the process keeps the arrays
between candidates, and it is killed when a candidate hangs or breaks the CUDA context. Either costs
the candidate that the process was busy with.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tvm_winograd.schedules.base.kernel import config_dict

from ..errors import UnsupportedError
from ..gpu import Hardware
from ..measure.builds import Builders, Built
from ..shapes import ConvSpec, Epilogue
from ..truth.tolerances import tolerance
from .build_worker import LIBRARY, CandidateBuild, save_json
from .problem import Written, save, write_problem
from .spaces import Candidate

_SHOWN = 300  # characters of an error
_START_SECONDS = 120.0  # `import tvm` on a busy machine
# Convolutions whose arrays are kept: that being measured, that being built, that before them.
_PROBLEMS = 3


@dataclass(frozen=True)
class Result:
    """What became of one candidate; `us` only if the status is "ok"."""

    status: str  # "ok", "compile error", "launch error", "wrong result", "timeout" or "crash"
    us: float | None = None
    error: float | None = None
    message: str = ""


class Runner(Protocol):
    """Something that measures candidates of one convolution, in the order given."""

    def build(self, spec: ConvSpec, epilogue: Epilogue, candidates: Sequence[Candidate]) -> None:
        """Start building what `measure` will be called with, in the background."""

    def measure(
        self, spec: ConvSpec, epilogue: Epilogue, candidates: Sequence[Candidate]
    ) -> Iterator[Result]: ...

    def close(self) -> None: ...


class MockRunner:
    """Builds and runs nothing: a time from a hash of the config, the same everywhere."""

    def __init__(self, seconds: float = 0.0) -> None:
        self._seconds = seconds  # a candidate takes

    def build(self, spec: ConvSpec, epilogue: Epilogue, candidates: Sequence[Candidate]) -> None:
        pass

    def measure(
        self, spec: ConvSpec, epilogue: Epilogue, candidates: Sequence[Candidate]
    ) -> Iterator[Result]:
        for candidate in candidates:
            time.sleep(self._seconds)
            text = json.dumps([spec.key(), candidate.kernel.name, config_dict(candidate.config)])
            number = int(hashlib.sha256(text.encode()).hexdigest()[:8], 16)
            yield Result("ok", us=100.0 + number % 10000 / 100, error=0.0)

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class Limits:
    """Seconds."""

    build: float = 100.0  # of one candidate
    run: float = 60.0  # of one candidate: its check and its timing
    timing: float = 0.15  # spent on timing one, and as long on warming up


@dataclass(frozen=True)
class _Batch:
    """Candidates that are built, and what they are run on."""

    builds: list[CandidateBuild]
    built: list[Built]
    problem: Written


class LocalRunner:
    """Measures on this machine's CPU or first GPU."""

    def __init__(
        self, hardware: Hardware, limits: Limits | None = None, builders: int | None = None
    ) -> None:
        """Raises:
        UnsupportedError: the extra [tune] is not installed.
        """
        check_installed()
        self._hardware, self._limits = hardware, limits or Limits()
        self._builders = builders or max(1, min(16, (os.cpu_count() or 2) - 1))
        self._folder = _scratch()
        self._worker = Worker()
        self._worker.start()  # it imports TVM while the first candidates are built
        self._pool = Builders(self._folder / "builds", self._builders, self._limits.build)
        self._number = itertools.count()
        self._background = ThreadPoolExecutor(max_workers=1)
        self._started: dict[tuple[str, ...], Future[_Batch]] = {}
        self._problems: dict[tuple[ConvSpec, Epilogue], Written] = {}

    def build(self, spec: ConvSpec, epilogue: Epilogue, candidates: Sequence[Candidate]) -> None:
        programs = tuple(c.program for c in candidates)
        if programs not in self._started:
            job = self._background.submit(self._build, spec, epilogue, candidates)
            self._started[programs] = job

    def measure(
        self, spec: ConvSpec, epilogue: Epilogue, candidates: Sequence[Candidate]
    ) -> Iterator[Result]:
        self.build(spec, epilogue, candidates)
        batch = self._started.pop(tuple(c.program for c in candidates)).result()
        for candidate, build, made in zip(candidates, batch.builds, batch.built, strict=True):
            try:
                if made.trouble is None:
                    yield self._run(spec, batch.problem, candidate, made.folder / LIBRARY)
                else:
                    yield self._not_built(made)
            finally:
                self._pool.forget(build)

    def close(self) -> None:
        self._worker.end()
        self._background.shutdown(wait=False, cancel_futures=True)
        self._pool.abandon()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _build(self, spec: ConvSpec, epilogue: Epilogue, candidates: Sequence[Candidate]) -> _Batch:
        arch = self._hardware.arch
        builds = [
            CandidateBuild(
                save_json(c.schedule.mod), arch, next(self._number), c.kernel.pass_config
            )
            for c in candidates
        ]
        for build in builds:
            self._pool.submit(build)
        problem = self._problem_of(spec, epilogue)
        return _Batch(builds, [self._pool.built(build) for build in builds], problem)

    def _not_built(self, built: Built) -> Result:
        assert built.trouble is not None
        status = "timeout" if built.seconds >= self._limits.build else "compile error"
        return Result(status, message=built.trouble.note[:_SHOWN])

    def _run(self, spec: ConvSpec, problem: Written, candidate: Candidate, library: Path) -> Result:
        packed = candidate.kernel.pack_weights(problem.weights, spec, candidate.config)
        weights = library.with_name("weights.npy")
        save(weights, packed)
        request = {
            "library": str(library),
            "weights": str(weights),
            "weights_dtype": str(packed.dtype),
            "problem": str(problem.folder),
            "limit": tolerance(spec, candidate.kernel.algorithm, candidate.kernel.math_of(spec)),
            "seconds": self._limits.timing,
        }
        return self._worker.call(request, self._limits.run)

    def _problem_of(self, spec: ConvSpec, epilogue: Epilogue) -> Written:
        key = (spec, epilogue)
        if key not in self._problems:
            while len(self._problems) >= _PROBLEMS:
                shutil.rmtree(self._problems.pop(next(iter(self._problems))).folder)
            folder = self._folder / f"problem-{spec.key()}-{epilogue.key()}"
            device = "cuda" if self._hardware.kind == "cuda" else "cpu"
            self._problems[key] = write_problem(folder, spec, epilogue, device)
        return self._problems[key]


class Worker:
    """`worker.py` in a process of its own, started when needed and again after each failure."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._ready = False

    def call(self, request: dict[str, Any], seconds: float) -> Result:
        """The worker's answer; it is ended if it does not come in time or is no success."""
        self._be_ready()
        assert self._process is not None and self._process.stdin is not None
        try:
            self._process.stdin.write((json.dumps(request) + "\n").encode())
            self._process.stdin.flush()
            answer = self._answer(seconds)
        except TimeoutError:
            self.end()
            return Result("timeout", message=f"no result after {seconds:g} s")
        except (EOFError, BrokenPipeError):
            code = self._process.wait()
            self.end()
            return Result("crash", message=f"the process ended with {code}")
        result = Result(**answer)
        if result.status == "launch error":
            self.end()  # a CUDA context is lost with it
        return result

    def end(self) -> None:
        if self._process is None:
            return
        self._process.kill()
        self._process.communicate()
        self._process, self._ready = None, False

    def start(self) -> None:
        """Does not wait until it is ready."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tvm_winograd.tuning.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )

    def _be_ready(self) -> None:
        if self._process is not None and self._process.poll() is not None:
            self.end()
        if self._process is None:
            self.start()
        if self._ready:
            return
        try:
            self._answer(_START_SECONDS)
            self._ready = True
        except (TimeoutError, EOFError) as error:
            self.end()
            raise UnsupportedError(
                "the process that runs candidates does not start; try "
                "`python -m tvm_winograd.tuning.worker`"
            ) from error

    def _answer(self, seconds: float) -> dict[str, Any]:
        """The next line.

        Raises:
            TimeoutError: none in time.  EOFError: the process has ended.
        """
        assert self._process is not None and self._process.stdout is not None
        end, text = time.monotonic() + seconds, b""
        while not text.endswith(b"\n"):
            left = max(0.0, end - time.monotonic())
            if not select.select([self._process.stdout], [], [], left)[0]:
                raise TimeoutError
            if not (part := os.read(self._process.stdout.fileno(), 65536)):
                raise EOFError
            text += part
        answer: dict[str, Any] = json.loads(text)
        return answer


def _scratch() -> Path:
    """A new folder under the temporary one; those of tuners that were killed are removed."""
    prefix = "tvm_winograd-tune-"
    for old in Path(tempfile.gettempdir()).glob(f"{prefix}*-*"):
        owner = old.name.removeprefix(prefix).partition("-")[0]
        if owner.isdigit() and not Path("/proc", owner).exists():
            shutil.rmtree(old, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-"))


def check_installed() -> None:
    """Raises:
    UnsupportedError: what MetaSchedule's builder and model need is missing.
    """
    from importlib.util import find_spec

    missing = [n for n in ("psutil", "cloudpickle", "xgboost") if find_spec(n) is None]
    if missing:
        raise UnsupportedError(
            f"tuning needs {', '.join(missing)}: pip install 'tvm-winograd[tune]'"
        )
