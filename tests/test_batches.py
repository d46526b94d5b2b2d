"""One artifact for a range of batches: every size, nothing seen of the padding, clear limits."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest
from gpu import needs_gpu
from tvm import relax

import tvm_winograd
from tvm_winograd.check.verify import verify, verify_buckets
from tvm_winograd.cli import main
from tvm_winograd.deploy.batches import Batches, make_batches, parse_batch, parse_buckets
from tvm_winograd.deploy.manifest import batches_of, check_manifest
from tvm_winograd.errors import ArtifactError, InputError, ModelError, TvmWinogradError
from tvm_winograd.frontend.builtin import builtin_model
from tvm_winograd.frontend.model import make_model
from tvm_winograd.frontend.resnet import ResNetConfig
from tvm_winograd.truth.evaluate import evaluate
from tvm_winograd.truth.reference import relative_error

HIGH = 5
CHAIN = [(3, 8), (8, 16), (16, 8)]
CLOSE = 1e-6  # relative to the largest value: float32 on both sides


def chain_module(batch: int, leak: bool = False):
    """conv-relu x3 on 11x9 maps; if `leak`, images are normalized by the mean of the batch."""
    x = relax.Var("x", relax.TensorType((batch, 3, 11, 9), "float32"))
    weights = [
        relax.Var(f"c{i}.weight", relax.TensorType((k, c, 3, 3), "float32"))
        for i, (c, k) in enumerate(CHAIN)
    ]
    builder = relax.BlockBuilder()
    with builder.function("main", [x, *weights]):
        with builder.dataflow():
            value = x
            for weight in weights:
                value = builder.emit(relax.op.nn.conv2d(value, weight, padding=(1, 1)))
                value = builder.emit(relax.op.nn.relu(value))
            if leak:
                mean = builder.emit(relax.op.mean(value, axis=[0], keepdims=True))
                value = builder.emit(relax.op.subtract(value, mean))
            out = builder.emit_output(value)
        builder.emit_func_output(out)
    return builder.get()


def chain(leak: bool = False):
    rng = np.random.default_rng(0)
    params = {
        f"c{i}.weight": (rng.standard_normal((k, c, 3, 3)) / (3 * np.sqrt(c))).astype("float32")
        for i, (c, k) in enumerate(CHAIN)
    }
    build, source = partial(chain_module, leak=leak), {"kind": "test", "name": "chain"}
    return make_model("chain", build(1), params, source, rebuild=build)


@pytest.fixture(scope="module")
def model():
    return chain()


@pytest.fixture(scope="module")
def artifact(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("batches") / "chain"
    return tvm_winograd.compile(model, batch=(1, HIGH), output=path)


@pytest.fixture(scope="module")
def runner(artifact):
    return artifact.load()


def images(batch: int = HIGH, shape: tuple[int, ...] = (3, 11, 9)) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((batch, *shape)).astype("float32")


@pytest.mark.parametrize("count", range(1, HIGH + 1))
def test_every_size_is_as_compiled_for_it(count, model, runner, tmp_path) -> None:
    x = images()[:count]
    static = tvm_winograd.compile(model, batch=count, output=tmp_path / "static").run(x)
    got = runner.run(x)
    assert got.shape == static.shape
    np.testing.assert_allclose(got, static, rtol=0, atol=CLOSE * abs(static).max())


def test_a_resnet(tmp_path) -> None:
    config = ResNetConfig("basic", (1, 1), 10, 3, 17, (8, 16), small_stem=True)
    small = builtin_model(config, "small")
    made = tvm_winograd.compile(small, batch=(1, 3), output=tmp_path / "a")
    x = images(3, (3, 17, 17))
    for count in (1, 2, 3):
        here = small.at_batch(count)
        want = evaluate(here.mod, here.params, [x[:count]])[0]
        assert relative_error(made.run(x[:count]), want) < 2e-6


def test_padding_is_never_seen(runner) -> None:
    x, full = images(), runner.run(images())
    for poison in (np.nan, np.inf, 1e30):
        for count in range(1, HIGH + 1):
            runner.run(np.full_like(x[:count], poison))
        for count in range(1, HIGH + 1):
            assert np.isfinite(runner.run(x[:count])).all()
            np.testing.assert_allclose(
                runner.run(x[:count]), full[:count], rtol=0, atol=CLOSE * abs(full).max()
            )


def test_tensors_are_not_copied_to_the_host(runner) -> None:
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(images(3)).clone()
    out = runner.run(x)
    assert not isinstance(out, np.ndarray) and tuple(out.shape) == (3, 8, 11, 9)
    np.testing.assert_array_equal(torch.from_dlpack(out).numpy(), runner.run(images(3)))
    kept = torch.from_dlpack(out).clone()
    runner.run(-x)
    assert torch.equal(torch.from_dlpack(out), kept)  # results are the caller's own


def test_parameters_are_stored_and_loaded_once(artifact, runner) -> None:
    manifest = artifact.manifest
    assert [m["name"] for m in manifest["modules"]] == ["cpu-b1", "cpu-b2", "cpu-b4", "cpu-b5"]
    assert manifest["batch"] == {"min": 1, "max": HIGH} and batches_of(manifest).high == HIGH
    assert manifest["inputs"][0]["shape"] == [HIGH, 3, 11, 9]
    distinct = {
        (entry["byteOffset"], entry["nbytes"])
        for module in manifest["modules"]
        for shard in json.loads((artifact.path / module["params"]["file"]).read_text())["records"]
        for entry in shard["records"]
    }
    assert manifest["params"]["tensors"] == len(distinct) < 4 * len(CHAIN)
    shared = zip(runner.at(4)._params, runner.at(5)._params, strict=True)
    assert any(a.same_as(b) for a, b in shared)


@pytest.mark.parametrize(
    ("inputs", "match"),
    [
        ([images()[:0]], "a batch of 0: this model takes batches from 1 to 5$"),
        ([images(6)], "a batch of 6: .* from 1 to 5; run it in parts, .* --batch 1-6"),
        ([images(3)[:, :, :9]], r"has shape \(3, 3, 9, 9\), the model takes \(3, 3, 11, 9\)$"),
        ([], "0 inputs given, the model takes 1: x"),
        ([np.float32(1)], "is a float32"),
        ([images(2).astype("float64")], "dtype float64"),
    ],
)
def test_inputs_that_do_not_fit(runner, inputs, match) -> None:
    for call in (runner.run, runner.time):
        with pytest.raises(InputError, match=match):
            call(*inputs)


def test_verified_bucket_by_bucket(artifact, model) -> None:
    reports = verify_buckets(artifact, model)
    assert [r.module for r in reports] == ["cpu-b1", "cpu-b2", "cpu-b4", "cpu-b5"]
    assert all(r.ok and r.padding and len(r.layers) == 3 for r in reports)
    assert [r.module for r in verify_buckets(artifact, model, [4])] == ["cpu-b4"]
    assert verify(artifact, model.at_batch(2)).module == "cpu-b2"
    with pytest.raises(InputError, match=r"no bucket for a batch of 3: there are 1, 2, 4, 5"):
        verify(artifact, model.at_batch(3))


def test_verify_finds_images_that_see_each_other(tmp_path) -> None:
    leaky = chain(leak=True)
    made = tvm_winograd.compile(leaky, batch=(1, 2), buckets=[2], output=tmp_path / "a")
    (report,) = verify_buckets(made, leaky)
    assert report.padding is False and not report.ok


def test_ranges_and_buckets() -> None:
    assert make_batches((1, 32)) == Batches(1, (1, 2, 4, 8, 16, 32))
    assert make_batches((3, 20)) == Batches(3, (4, 8, 16, 20))
    assert make_batches((1, 32), [32, 8, 8]) == Batches(1, (8, 32))
    assert make_batches(8) is None and make_batches(None) is None
    assert [Batches(1, (1, 8, 32)).bucket(n) for n in (1, 2, 8, 9, 32)] == [1, 8, 8, 32, 32]
    assert parse_batch("8") == 8 and parse_batch("1-32") == (1, 32)
    assert parse_buckets("1,8") == [1, 8]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"batch": (0, 4)}, "two positive numbers"),
        ({"batch": (4, 1)}, "the smaller one first"),
        ({"batch": (1, 2, 3)}, "a range has two"),
        ({"batch": (1, 8), "buckets": [2, 4]}, "8 among them"),
        ({"batch": (2, 8), "buckets": [1, 8]}, "numbers in that range"),
        ({"batch": 8, "buckets": [8]}, "go with a range"),
        ({"batch": [1, 8]}, "a positive number of images"),
    ],
)
def test_refused_ranges(model, options, match, tmp_path) -> None:
    with pytest.raises(TvmWinogradError, match=match):
        tvm_winograd.compile(model, output=tmp_path / "a", **options)


def test_models_that_cannot_have_a_range(model, tmp_path) -> None:
    fixed = make_model("fixed", chain_module(4), model.params, {})
    with pytest.raises(ModelError, match="loaded for batch 4, not 1"):
        tvm_winograd.compile(fixed, batch=(1, 4), output=tmp_path / "a")

    def summed(batch: int):
        x = relax.Var("x", relax.TensorType((batch, 4), "float32"))
        builder = relax.BlockBuilder()
        with builder.function("main", [x]):
            with builder.dataflow():
                out = builder.emit_output(relax.op.sum(x, axis=0))
            builder.emit_func_output(out)
        return builder.get()

    one = make_model("sum", summed(4), {}, {}, rebuild=summed)
    with pytest.raises(ModelError, match="axis 0 of every input and output must be the batch"):
        tvm_winograd.compile(one, batch=(1, 4), output=tmp_path / "a")


@pytest.mark.parametrize(
    "damage",
    [
        lambda m: m.update(batch=None),
        lambda m: m["batch"].update(max=4),
        lambda m: m["batch"].update(min=2),
        lambda m: m["modules"][0].update(batch=None),
        lambda m: m["modules"][0].update(batch=2),
        lambda m: m["outputs"][0].update(shape=[1, 8]),
        lambda m: m["modules"].pop(),
    ],
)
def test_damaged_ranges(artifact, damage) -> None:
    manifest = json.loads(json.dumps(artifact.manifest))
    damage(manifest)
    with pytest.raises(ArtifactError, match=r"does not fit the modules'"):
        check_manifest(manifest, "here")


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("cuda_graph", [True, False])
def test_on_the_gpu(model, cuda_graph, tmp_path) -> None:
    """Every size on streams of its own, right behind what makes the input, padding poisoned."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch without CUDA")
    made = tvm_winograd.compile(
        model, target="cuda", batch=(1, HIGH), buckets=[2, HIGH], output=tmp_path / "a",
        cuda_graph=cuda_graph, ptx=False,
    )  # fmt: skip
    on_gpu, whole = made.load(), model.at_batch(HIGH)
    (want,) = evaluate(whole.mod, whole.params, [images()])
    for count in (*range(1, HIGH + 1), 3, 1):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            on_gpu.run(torch.full((max(count - 1, 1), 3, 11, 9), torch.nan).cuda(), stream=stream)
            x = torch.zeros((count, 3, 11, 9), device="cuda")
            torch.cuda._sleep(10_000_000)  # the input is late: the copy must wait for it
            x.copy_(torch.from_numpy(images()[:count]).pin_memory().cuda(non_blocking=True))
            got = torch.from_dlpack(on_gpu.run(x, stream=stream)).clone()
        stream.synchronize()
        assert relative_error(got.cpu().numpy(), want[:count]) < 2e-6


def test_command_line(tmp_path, capsys, monkeypatch) -> None:
    from tvm_winograd.frontend import builtin

    tiny = ResNetConfig("basic", (1,), 10, 3, 9, (8,), small_stem=True)
    monkeypatch.setitem(builtin.BUILTINS, "tiny", tiny)
    path = str(tmp_path / "a")
    assert main(["compile", "tiny", "-o", path, "--batch", "1-3", "--buckets", "2,3"]) == 0
    np.save(tmp_path / "x.npy", images(1, (3, 9, 9)))
    capsys.readouterr()
    assert main(["run", path, str(tmp_path / "x.npy"), "--repeats", "1", "--json"]) == 0
    ran = json.loads(capsys.readouterr().out)
    assert (ran["batch"], ran["output_shape"], ran["module"]) == (1, [1, 10], "cpu-b2")
    assert main(["verify", path, "--buckets", "2", "--json"]) == 0
    checked = json.loads(capsys.readouterr().out)
    assert checked["ok"] and [b["module"] for b in checked["buckets"]] == ["cpu-b2"]
    assert main(["verify", path, "--batch", "1-4"]) == 2
    assert "compiled for batch 1-3" in capsys.readouterr().err
    assert main(["compile", "tiny", "-o", path, "--batch", "1-"]) == 2
