"""`bench model` without a GPU: a small ResNet on this CPU, fake providers, builds."""

from __future__ import annotations

import json
import operator
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from tiny_network import CONDITIONS, SUBJECT, TINY, Fake, FakeTimer, bench, tiny

import tvm_winograd
from tvm_winograd.bench.network import network, profile, session
from tvm_winograd.bench.network import ours as ours_module
from tvm_winograd.bench.network.network import Network, Subject
from tvm_winograd.bench.network.ours import Ours, OursKernels
from tvm_winograd.bench.network.provider import Bench
from tvm_winograd.bench.network.rows import KERNELS, MODELS
from tvm_winograd.bench.network.run import DEFAULT, PROVIDERS, Session, keys, measure
from tvm_winograd.bench.network.stock import Dlight
from tvm_winograd.choose.options import Wishes
from tvm_winograd.errors import BuildError, DeviceError, InputError, UnsupportedError
from tvm_winograd.gpu import gpu_for
from tvm_winograd.measure.attempt import Trouble, WrongResult
from tvm_winograd.measure.builds import Built, build_all
from tvm_winograd.measure.row_files import Store
from tvm_winograd.truth.reference import relative_error


@pytest.fixture(autouse=True)
def loaded(monkeypatch):
    """Every subject is the small network."""
    monkeypatch.setattr(network.Subject, "load", lambda self: tiny())


def a_session(of: Bench, files=()) -> Session:
    return Session(of, CONDITIONS, Store(MODELS, files), Store(KERNELS), "max-error=1e-06")


def measured(provider, built=None, timer=None, files=()):
    made = {(SUBJECT, provider.name): built} if built else {}
    (row,), kernels = measure([SUBJECT], [provider], made, a_session(bench(None, timer), files))
    assert kernels == []
    return row


@pytest.mark.parametrize("kind", [Ours, Dlight])
def test_a_network_compiled_checked_and_timed_on_this_cpu(kind, tmp_path):
    """The same steps as on a GPU: build into a folder, load it, run it, compare with float64."""
    provider = kind(bench())
    provider.build(SUBJECT)(tmp_path)
    row = measured(provider, Built(tmp_path, 3.0))
    assert row.status == "ok" and 0 < row.error <= row.error_limit < 1e-5
    assert (row.model, row.batch, row.compile_s) == ("tiny", 2, 3.0)
    assert (row.latency_ms, row.latency_spread_ms) == (2.0, 0.02)
    assert (row.interval_ms, row.interval_spread_ms) == (1.0, 0.01)
    assert row.memory_bytes > 2 * 16 * 8 * 8 * 4 and row.config and row.gpu == "NVIDIA H200"
    assert row.options == ("max-error=1e-06" if provider.ours else "")


@pytest.mark.parametrize(
    ("kind", "status", "note"),
    [
        ("refuses", "refused", "no such network"),
        ("breaks", "failed", "RuntimeError: a kernel"),
        ("rough", "wrong", "relative error 1.00e-03, limit"),
        ("lost", "wrong", "NaN or infinity"),
    ],
)
def test_a_peer_that_cannot_is_a_row_without_a_time(kind, status, note, tmp_path):
    row = measured(Fake(kind), files=[tmp_path / "rows.json"])
    assert (row.status, row.latency_ms) == (status, None) and note in row.note
    assert MODELS.read(tmp_path / "rows.json") == [row]


def test_a_build_that_failed_is_a_row_of_a_peer_and_the_end_for_ours(tmp_path):
    trouble = Built(tmp_path, 1.0, Trouble("failed", "TVM could not compile"))
    row = measured(Fake(), trouble)
    assert (row.status, row.note) == ("failed", "TVM could not compile")
    with pytest.raises(BuildError, match="tiny, batch 2: ours: TVM could not compile"):
        measured(Fake(name="ours", ours=True), trouble)


def test_a_wrong_result_of_ours_ends_it():
    with pytest.raises(WrongResult, match=r"tiny, batch 2: ours \(c\) is wrong: relative error"):
        measured(Fake("rough", "ours", ours=True))
    with pytest.raises(RuntimeError, match="kernel"):
        measured(Fake("breaks", "ours", ours=True))


def test_a_lost_context_ends_it():
    class Breaks(Fake):
        def prepare(self, network, folder):
            timer.lost = True
            raise RuntimeError("a kernel")

    timer = FakeTimer()
    with pytest.raises(DeviceError, match=r"peer broke the GPU's context.*a kernel"):
        measured(Breaks(), timer=timer)


def test_an_artifact_is_one_kind_of_ours(tmp_path, monkeypatch):
    made = tvm_winograd.compile(tiny(), target="cuda", output=tmp_path / "a", ptx=False)
    subject = Subject(str(made.path), artifact=True)
    on_gpu = Bench(FakeTimer(), gpu_for("sm_90"))
    assert Ours(on_gpu).build(subject) is None
    with pytest.raises(UnsupportedError, match="with a CUDA graph"):
        OursKernels(on_gpu).prepare(Network(subject, "cpu"), None)
    monkeypatch.undo()
    assert session.subjects_of([str(made.path), "vgg16"], [1, 2], None) == [
        subject, Subject("vgg16", 1), Subject("vgg16", 2),
    ]  # fmt: skip
    manifest = json.loads((made.path / "manifest.json").read_text())
    manifest["batch"], manifest["modules"][0]["batch"] = {"min": 1, "max": 2}, 2
    (made.path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(InputError, match="range of batches"):
        subject.load()


class Builds(Fake):
    """Compiles what any process can import: one that works, one that raises a TypeError."""

    def build(self, subject):
        return {"works": str, "fails": operator.itemgetter(0)}[self.name]


def test_builds_run_in_processes(tmp_path):
    lines: list[str] = []
    both = [Builds(name="works"), Builds(name="fails")]
    made = session.compiled([SUBJECT], both, tmp_path, 1, lines.append)
    assert made[SUBJECT, "works"].trouble is None and made[SUBJECT, "works"].folder.is_dir()
    assert made[SUBJECT, "fails"].trouble.status == "failed"
    assert "TypeError" in made[SUBJECT, "fails"].trouble.note
    assert lines[0] == "compiling 2 networks, 1 at a time"
    assert lines[1].startswith("tiny, batch 2, works: compiled in 0.0 s")
    assert build_all({}, tmp_path, 1) == {}


def test_ours_is_compiled_first():
    providers = [Fake(name="a"), Fake(name="ours", ours=True)]
    assert [name for _, name in keys([SUBJECT], providers)] == ["ours", "a"]
    assert DEFAULT == (
        "ours", "torch", "torch-graph", "torch-compile", "torch-compile-tf32", "tvm-dlight",
        "tvm-metaschedule",
    )  # fmt: skip
    assert set(PROVIDERS) - set(DEFAULT) == {"ours-kernels"}


def test_every_wish_reaches_the_compiler(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(
        ours_module, "compile_model", lambda model, output, options: asked.append(options)
    )
    wishes = Wishes(layers={"conv1": "direct"}, layout="NHWC")
    OursKernels(Bench(FakeTimer(), gpu_for("sm_90"), wishes)).build(SUBJECT)(tmp_path)
    (options,) = asked
    assert not options.cuda_graph and options.arch == "sm_90"
    for wish in fields(Wishes):
        assert getattr(options, wish.name) == getattr(wishes, wish.name), wish.name


def test_a_profile_comes_last(monkeypatch, tmp_path):
    """Of ours alone, when all is measured; the profiler is torch's, here a made-up list."""
    done = []
    ours, peer = Ours(bench()), Fake()
    ours.build(SUBJECT)(tmp_path)
    monkeypatch.setattr(peer, "prepare", lambda *_: done.append("peer") or Fake.prepare(peer, *_))

    def record(run, timer):
        done.append("profile")
        run()
        return [profile.Launches("fused_conv2d_kernel", 20, 100.0)]

    monkeypatch.setattr(profile, "record", record)
    to_profile = replace(a_session(bench()), profiled=True)
    made = {(SUBJECT, "ours"): Built(tmp_path, 1.0)}
    _, (kernel,) = measure([SUBJECT], [ours, peer], made, to_profile)
    assert done == ["peer", "profile"]
    assert (kernel.model, kernel.batch, kernel.us, kernel.percent) == ("tiny", 2, 5.0, 100.0)
    assert kernel.options == "max-error=1e-06" and kernel.gpu == "NVIDIA H200"
    assert to_profile.kernels.rows == [kernel]


def test_torch_in_parts_is_what_our_evaluator_computes(monkeypatch):
    """The float64 truth and the float32 error on a machine with torch, here on the CPU."""
    plain = Network(SUBJECT, "cpu")
    want, error = plain._want[0], plain.float32_error
    monkeypatch.setitem(network.BUILTINS, "tiny", TINY)
    monkeypatch.setattr(network.peers, "has_torch_cuda", lambda: True)
    monkeypatch.setattr(network, "_PART", 1)
    other = Network(SUBJECT, "cpu")
    assert other._want[0].dtype == np.float64 and relative_error(other._want[0], want) < 1e-12
    assert 1e-8 < other.float32_error < 1e-5 and 1e-8 < error < 1e-5
    assert next(other.twin.parameters()).dtype == torch.float32
    other.release()
    assert "twin" not in other.__dict__


def test_no_torch_network_of_other_models():
    other = Network(SUBJECT, "cpu")
    with pytest.raises(UnsupportedError, match="tiny is no built-in network"):
        _ = other.twin
    assert replace(SUBJECT, batch=None).__str__() == "tiny"
