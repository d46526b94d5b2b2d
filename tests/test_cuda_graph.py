"""A network as one CUDA graph gives the bits that its kernels give one by one."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from gpu import local_arch

import tvm_winograd
from tvm_winograd.check.verify import verify
from tvm_winograd.frontend.builtin import builtin_model
from tvm_winograd.frontend.resnet import ResNetConfig

pytestmark = pytest.mark.gpu
SMALL = ResNetConfig("basic", (1, 2), 10, 3, 33, (16, 24))
ALGORITHMS = ["auto", "winograd-f4"]


def images(count, seed=1):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((3, 3, 33, 33)).astype("float32") for _ in range(count)]


@pytest.fixture(scope="module")
def model():
    return builtin_model(SMALL, "small", batch=3)


@pytest.fixture(scope="module")
def artifacts(model, tmp_path_factory):
    """(algorithm, with a graph) -> artifact."""
    folder = tmp_path_factory.mktemp("artifacts")
    options = {"target": "cuda", "arch": local_arch(), "ptx": False}
    return {
        (algorithm, graph): tvm_winograd.compile(
            model,
            output=folder / f"{algorithm}-{graph}",
            algorithm=algorithm,
            cuda_graph=graph,
            **options,
        )
        for algorithm in ALGORITHMS
        for graph in (False, True)
    }


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_same_bits(artifacts, algorithm):
    plain, graph = (artifacts[algorithm, g].load() for g in (False, True))
    assert plain.module["cuda_graph"] is None
    assert graph.module["cuda_graph"]["regions"] == 1
    for x in images(5):
        assert np.array_equal(graph.run(x), plain.run(x))


def test_verify(artifacts, model):
    report = verify(artifacts["winograd-f4", True], model)
    assert report.ok, report


def test_two_models_take_turns(artifacts):
    want = [artifacts[a, False].load() for a in ALGORITHMS]
    turns = [artifacts[a, True].load() for a in ALGORITHMS]
    for x in images(4):
        for runner, plain in zip(turns, want, strict=True):
            assert np.array_equal(runner.run(x), plain.run(x))


def test_results_stay_the_callers(artifacts):
    runner = artifacts["auto", True].load()
    first, second = (runner._memory.upload(x) for x in images(2))
    one = runner.run(first)
    kept = runner._memory.download(one)
    two = runner.run(second)
    assert one.data_ptr() != two.data_ptr()
    assert np.array_equal(runner._memory.download(one), kept)


def test_threads(artifacts):
    runner, plain = (artifacts["auto", g].load() for g in (True, False))
    inputs = images(16)
    want = [plain.run(x) for x in inputs]
    with ThreadPoolExecutor(4) as pool:
        got = list(pool.map(runner.run, inputs))
    assert all(np.array_equal(g, w) for g, w in zip(got, want, strict=True))


def test_loading_while_others_run(artifacts):
    """Captures keep our own runs away."""
    runner = artifacts["auto", True].load()
    (x,) = images(1)
    want = runner.run(x)
    with ThreadPoolExecutor(4) as pool:
        runs, loads = [], []
        for i in range(200):
            runs.append(pool.submit(runner.run, x))
            if i % 40 == 0:
                loads.append(pool.submit(artifacts["winograd-f4", True].load))
        assert all(np.array_equal(r.result(), want) for r in runs)
        other = artifacts["winograd-f4", False].load().run(x)
        assert all(np.array_equal(made.result().run(x), other) for made in loads)


def test_streams(artifacts):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch without CUDA")
    runner, plain = (artifacts["winograd-f4", g].load() for g in (True, False))
    streams = [torch.cuda.Stream() for _ in range(2)]
    inputs = images(6)
    uploaded = [torch.from_numpy(x).cuda() for x in inputs]
    torch.cuda.synchronize()
    outs = [torch.from_dlpack(runner.run(x, stream=streams[i % 2])) for i, x in enumerate(uploaded)]
    torch.cuda.synchronize()
    for x, out in zip(inputs, outs, strict=True):
        assert np.array_equal(out.cpu().numpy(), plain.run(x))


def test_time(artifacts):
    runner = artifacts["auto", True].load()
    (x,) = images(1)
    want = runner.run(x)
    assert len(runner.time(x, repeats=5)) == 5
    assert np.array_equal(runner.run(x), want)


def test_a_program_may_end_with_a_model_loaded(artifacts):
    code = "import sys, tvm_winograd; runner = tvm_winograd.load(sys.argv[1])"
    command = [sys.executable, "-c", code, str(artifacts["auto", True].path)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0 and not run.stderr, run.stderr
