"""`bench conv` compiles in other processes, ahead: here for this CPU, with everything but a GPU."""

from __future__ import annotations

import json
import operator
import os
import time
from concurrent.futures import BrokenExecutor
from contextlib import nullcontext

import pytest
from convs import FULL
from small_builds import Dies, FillsTheDisk, Hangs, Writes

from tvm_winograd.bench.conv.ours import KernelBuild, Ours
from tvm_winograd.bench.conv.provider import Bench
from tvm_winograd.bench.conv.rows import Store
from tvm_winograd.bench.conv.run import Settings, measure
from tvm_winograd.errors import InputError
from tvm_winograd.gpu import host_cpu
from tvm_winograd.measure.attempt import Trouble
from tvm_winograd.measure.builds import Builders, check_jobs
from tvm_winograd.measure.conditions import Conditions
from tvm_winograd.measure.cuda_timing import Timing
from tvm_winograd.shapes import ConvSpec

SPEC = ConvSpec(n=2, c=16, h=9, w=7, k=16)
CONDITIONS = Conditions(gpu="x")


def test_equal_builds_are_made_once(tmp_path):
    with Builders(tmp_path, 1) as builders:
        for name in ("a", "b", "a"):
            builders.submit(Writes(name))
        assert len(builders) == 2
        builders.finish()
        made = builders.built(Writes("a"))
        assert made.trouble is None and made == builders.built(Writes("a"))
        assert int((made.folder / "a").read_text()) != os.getpid()
        assert builders.built(Writes("c", "no such kernel")).trouble == Trouble(
            "refused", "no such kernel"
        )
        broken = builders.built(operator.itemgetter(0)).trouble
        assert broken.status == "failed" and "TypeError" in broken.note


def test_a_process_that_dies_costs_what_it_compiled(tmp_path):
    with Builders(tmp_path, 1) as builders:
        for build in (Dies(), Writes("a")):
            builders.submit(build)
        builders.finish()
        assert builders.built(Writes("a")).trouble is None
        assert builders.built(Dies()).trouble == Trouble(
            "failed", "the process that compiled it died"
        )


def test_what_had_not_begun_is_compiled_by_a_new_pool(tmp_path):
    with Builders(tmp_path, 1) as builders:
        for build in (Dies(), Writes("a"), Writes("b")):
            builders.submit(build)
        made = [builders.built(Writes(name)) for name in "ab"]
        ids = {(one.folder / name).read_text() for one, name in zip(made, "ab", strict=True)}
        assert len(ids) == 1  # one process, not one for each
        builders.forget(Writes("a"))
        assert not made[0].folder.exists() and len(builders) == 2


def test_what_died_once_is_tried_again(tmp_path):
    with Builders(tmp_path, 1) as builders:
        assert builders.built(Dies(tmp_path / "died")).trouble is None


def test_what_hangs_is_ended_and_others_are_compiled(tmp_path):
    with Builders(tmp_path, 1, longest=4.0) as builders:
        for build in (Hangs(), Writes("a")):
            builders.submit(build)
        assert builders.built(Writes("a")).trouble is None
        assert builders.built(Hangs()).trouble == Trouble("failed", "took more than 4 s")


def test_what_hangs_can_be_abandoned(tmp_path):
    start = time.monotonic()
    builders = Builders(tmp_path, 1)
    builders.submit(Hangs())
    while not (tmp_path / "0.begun").exists():
        time.sleep(0.1)
    builders.abandon()
    with pytest.raises(BrokenExecutor):
        builders.built(Hangs())
    assert time.monotonic() - start < 60


def test_a_full_disk_costs_what_does_not_fit(tmp_path):
    (tmp_path / "1").touch()  # where the second build's folder should be
    with Builders(tmp_path, 1) as builders:
        for build in (FillsTheDisk(), Writes("no folder"), Writes("a")):
            builders.submit(build)
        assert "No space left" in builders.built(FillsTheDisk()).trouble.note
        assert "FileExistsError" in builders.built(Writes("no folder")).trouble.note
        assert builders.built(Writes("a")).trouble is None


def test_jobs():
    assert check_jobs(3) == 3 and check_jobs(None) >= 1
    with pytest.raises(InputError, match="--jobs 0"):
        check_jobs(0)


class Timer:
    """A GPU that is this CPU."""

    current = staticmethod(nullcontext)

    def synchronize(self):
        pass

    def measure(self, call, mode, l2, plan):
        call()
        return Timing(10.0, 0.5, plan.calls, plan.repeats)


@pytest.fixture
def on_the_cpu():
    return Bench(Timer(), host_cpu(), "x")  # type: ignore[arg-type]


def measured(bench, said):
    settings, ours = Settings(["back_to_back"], ["warm"], jobs=2), Ours(bench)
    return measure([SPEC], FULL, [ours], bench, CONDITIONS, Store(), settings, said.append)


def test_compiled_elsewhere_checked_and_measured_here(on_the_cpu):
    said: list[str] = []
    rows = measured(on_the_cpu, said)
    by_name = {row.variant: row for row in rows}
    for name in ("best", "default", "winograd-f2"):
        row = by_name[name]
        assert (row.status, row.us, row.layout) == ("ok", 10.0, "NCHW"), row
        kernel, _, rest = row.config.partition(" ")
        assert kernel.startswith("winograd") and json.loads(rest.rpartition(",")[0])
        assert rest.endswith(", default") and 0 < row.error < 5e-6
    assert "no kernel for llvm" in by_name["winograd-f4"].note
    assert by_name["opencnn"].status == "refused" and "config" in by_name["opencnn"].note
    assert (by_name["nhwc"].status, by_name["nhwc"].layout) == ("ok", "NHWC")
    # the three in NCHW are equal; NHWC's is another
    assert said[0] == "kernels to compile: 2, 2 at a time"
    assert len(said) == 1 + len(rows)


def test_a_kernel_that_does_not_compile_is_a_row(on_the_cpu, monkeypatch):
    """Of ours too: the others are measured."""
    broken = KernelBuild(SPEC, FULL, host_cpu(), "winograd-cpu", None)
    monkeypatch.setattr(Ours, "_build", lambda *_: broken)
    rows = measured(on_the_cpu, [])
    assert {row.status for row in rows} == {"failed"}
    assert "AttributeError" in rows[0].note
