"""The tuning loop with made-up times: what it tries, keeps, resumes and transfers."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from tvm_winograd import ConvSpec, Epilogue, TvmWinogradError, cli
from tvm_winograd.check import inspect
from tvm_winograd.choose.options import Wishes
from tvm_winograd.choose.select import choose
from tvm_winograd.frontend import load_model
from tvm_winograd.gpu import gpu_for, host_cpu
from tvm_winograd.measure import provenance
from tvm_winograd.schedules import KERNELS
from tvm_winograd.schedules.base.kernel import config_dict
from tvm_winograd.schedules.winograd_fused import kernel as winograd_fused
from tvm_winograd.tables import lookup as logs
from tvm_winograd.tables import store as log_store
from tvm_winograd.tuning import journal, order, spaces
from tvm_winograd.tuning.loop import Settings, tune
from tvm_winograd.tuning.runner import MockRunner, Result
from tvm_winograd.tuning.spaces import space_of
from tvm_winograd.tuning.tasks import model_tasks, shape_tasks

H200, CPU = gpu_for("sm_90"), host_cpu()
SPEC = ConvSpec(1, 16, 14, 14, 32)
BIG = ConvSpec(32, 128, 28, 28, 128)
WIDE_TILE = winograd_fused.Fused()


class Recording(MockRunner):
    """A MockRunner that remembers what it was asked."""

    def __init__(self):
        super().__init__()
        self.batches = []

    def measure(self, spec, epilogue, candidates):
        self.batches.append([c.program for c in candidates])
        return super().measure(spec, epilogue, candidates)


class Failing(Recording):
    """Every third candidate of a batch fails."""

    def measure(self, spec, epilogue, candidates):
        for i, result in enumerate(super().measure(spec, epilogue, candidates)):
            yield Result("wrong result", error=1.0) if i % 3 == 2 else result


def tuned(out, spec=SPEC, hardware=CPU, runner=None, trials=64, per_batch=16):
    made = provenance.collect(hardware, mock=True)
    runner, settings = runner or MockRunner(), Settings(trials, per_batch)
    (outcome,) = tune(shape_tasks([spec.key()]), hardware, runner, made, out, settings)
    return outcome


def test_everything_is_measured_once_and_the_best_is_kept(tmp_path):
    runner = Failing()
    outcome = tuned(tmp_path, runner=runner, per_batch=5)
    flat = [program for batch in runner.batches for program in batch]
    assert len(flat) == len(set(flat)) == outcome.space == outcome.measured >= 8
    assert max(map(len, runner.batches)) == 5
    assert outcome.failures == {"wrong result": outcome.space // 5 + (outcome.space % 5 > 2)}
    rows, complaints = logs.read_folder(tmp_path, "cpu")
    assert not complaints
    measured = [r for r in rows if r.origin == "measured"]
    assert {r.kernel for r in measured} == {"winograd-cpu", "direct-cpu", "im2win-cpu"}
    assert outcome.best.us == pytest.approx(min(r.us for r in measured))
    assert {r.epilogue for r in measured} == {"bias+relu"}
    others = {"none", "bias", "relu", "bias+residual+relu", "bias+relu6"}
    assert {r.epilogue for r in rows} == {"bias+relu"} | others
    assert all(r.trials and r.date and r.tvm and r.algorithm for r in rows)


def test_going_on_measures_what_is_missing(tmp_path):
    first = tuned(tmp_path, trials=5)
    second = tuned(tmp_path)
    third = tuned(tmp_path, runner=None)
    assert (first.measured, first.resumed) == (5, 0)
    assert (second.measured, second.resumed) == (first.space - 5, 5)
    assert (third.measured, third.resumed) == (0, first.space)
    assert third.best == second.best


def test_a_changed_kernel_is_measured_again(tmp_path):
    first = tuned(tmp_path)
    path = journal.journal_path(tmp_path, "cpu", "mock")
    path.write_text(path.read_text().replace('"program": "', '"program": "old '))
    assert tuned(tmp_path).measured == first.space


def test_a_damaged_journal_costs_its_lines(tmp_path):
    tuned(tmp_path, trials=5)
    path = journal.journal_path(tmp_path, "cpu", "mock")
    path.write_bytes(path.read_bytes()[:-20])
    outcome = tuned(tmp_path)
    assert outcome.resumed == 4 and len(outcome.complaints) == 1
    assert all(json.loads(line) for line in path.read_text().splitlines()[5:])


def test_metaschedules_model_chooses_when_trials_are_few(tmp_path, monkeypatch):
    ranked = []
    rank = order._Model.rank

    def spy(model, candidates):
        ranked.append((len(candidates), rank(model, candidates)))
        return ranked[-1][1]

    monkeypatch.setattr(order._Model, "rank", spy)
    wide, runner = ConvSpec(1, 16, 14, 14, 64), Recording()
    outcome = tuned(tmp_path, wide, runner=runner, trials=11, per_batch=8)
    flat = [program for batch in runner.batches for program in batch]
    assert len(flat) == len(set(flat)) == outcome.measured == 11 < outcome.space
    assert [len(batch) for batch in runner.batches] == [8, 3]
    ((count, best_first),) = ranked
    assert count == outcome.space - 8
    assert runner.batches[1][:2] == [c.program for c in best_first[:2]]


def test_the_space_has_every_default_first_and_nothing_illegal():
    space = space_of(BIG, Epilogue(), H200)
    defaults = [c for c in space.candidates if c.default]
    assert space.candidates[: len(defaults)] == defaults
    assert {c.kernel.name for c in defaults} == {c.kernel.name for c in space.candidates}
    assert space.candidates[0].config == choose(BIG, Epilogue(), H200).config
    for c in space.candidates:
        assert c.kernel.illegal(c.config, BIG, H200) is None
    assert len({c.program for c in space.candidates}) == len(space.candidates)


def test_the_estimate_leaves_out_blocks_too_large_for_one_image():
    tiny = ConvSpec(1, 512, 7, 7, 512)
    space = space_of(tiny, Epilogue(), H200)
    assert space.hopeless
    products = [c for c in space.candidates if c.kernel.seconds]
    assert products
    assert min(c.kernel.seconds(c.config, tiny, H200) for c in products) > 0


def test_kernels_without_an_estimate_are_kept_for_the_end():
    unknown = replace(winograd_fused.KERNEL, seconds=None)
    pairs = [(kernel, WIDE_TILE, False) for kernel in (unknown, winograd_fused.KERNEL)]
    ranked = spaces._promising(pairs, BIG, H200)
    assert [pair[0].seconds is None for pair in ranked] == [False, True]


def start_tuner(out, *more):
    command = [sys.executable, "-m", "tvm_winograd", "tune", SPEC.key(), "--mock", "--json"]
    return subprocess.Popen(
        [*command, "--out", str(out), "--per-batch", "2", *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def lines_of(path):
    return len(path.read_text().splitlines()) if path.exists() else 0


def test_kill_9_loses_at_most_the_running_batch(tmp_path):
    path = journal.journal_path(tmp_path, "cpu", "mock")
    process = start_tuner(tmp_path, "--mock-seconds", "0.2")
    end = time.monotonic() + 60
    while lines_of(path) < 4 and time.monotonic() < end:
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    known = lines_of(path)
    rows, complaints = logs.read_folder(tmp_path, "cpu")
    assert rows and not complaints
    outcome = tuned(tmp_path)
    assert 4 <= outcome.resumed == known < outcome.space == known + outcome.measured


def test_two_tuners_on_one_folder(tmp_path):
    tuners = [start_tuner(tmp_path, "--mock-seconds", "0.02") for _ in range(2)]
    reports = [json.loads(t.communicate(timeout=60)[0]) for t in tuners]
    assert [t.returncode for t in tuners] == [0, 0]
    found, complaints = journal.read(journal.journal_path(tmp_path, "cpu", "mock"))
    space = reports[0]["tasks"][0]["space"]
    assert not complaints and len(found) == space
    rows, complaints = logs.read_folder(tmp_path, "cpu")
    assert not complaints and len(rows) == 18  # three kernels, six epilogues
    best = {report["tasks"][0]["best"]["us"] for report in reports}
    assert best == {min(t.us for t in found.values())}


def test_a_full_disk_stops_with_a_message_and_keeps_what_was_there(tmp_path, monkeypatch, capsys):
    tuned(tmp_path, trials=4)

    def full(*arguments):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "fsync", full)
    code = cli.main(["tune", SPEC.key(), "--mock", "--out", str(tmp_path)])
    assert code == 2 and "No space left" in capsys.readouterr().err
    monkeypatch.undo()
    assert tuned(tmp_path).best is not None


def test_tasks_of_a_network_and_its_log(tmp_path):
    model = load_model("resnet18")
    tasks = [t for t in model_tasks(model, H200) if (t.spec.r, t.spec.stride) == (3, 1)]
    assert [(t.spec.c, t.spec.h) for t in tasks] == [(64, 56), (128, 28), (256, 14), (512, 7)]
    assert sum(len(t.layers) for t in tasks) == 13
    rows = []
    for task in tasks:
        kernel = next(k for k in KERNELS if k.target == "cuda")
        config = config_dict(kernel.configs(task.spec, H200)[-1])
        for epilogue in (task.epilogue, *task.others):
            rows.append(
                logs.Row("NVIDIA H200", "sm_90", task.spec.key(), epilogue.key(), kernel.name,
                         config, 9.0)
            )  # fmt: skip
    log_store.merge(tmp_path, rows)
    layers = inspect.layers_of(model, H200, Wishes(logs=tmp_path))
    sources = {x.choice.source for x in layers if (x.spec.r, x.spec.stride) == (3, 1)}
    assert sources == {"log"}


def test_what_cannot_be_tuned(tmp_path, capsys):
    with pytest.raises(TvmWinogradError, match=r"ConvSpec.key"):
        shape_tasks([SPEC.key(), "resnet18"])
    strided = ConvSpec(1, 1024, 9, 9, 4, stride=2, groups=2)
    out = ["--mock", "--out", str(tmp_path)]
    assert cli.main(["tune", strided.key(), "--target", "cuda", *out]) == 2
    assert "no kernel of ours" in capsys.readouterr().err
    assert cli.main(["tune", SPEC.key(), *out, "--trials", "0"]) == 2
