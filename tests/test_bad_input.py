"""What a user may get wrong: the right exit code, one JSON document or none, never a traceback."""

from __future__ import annotations

import json
import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from helpers_small_model import BATCH, WIDTH, built, write

import tvm_winograd
from tvm_winograd import ConvSpec, TvmWinogradError, conv2d
from tvm_winograd.cli import common, main
from tvm_winograd.conv import hardware_for
from tvm_winograd.errors import (
    ArtifactError,
    BuildError,
    InputError,
    ModelError,
    SpecError,
    UnsupportedError,
)
from tvm_winograd.frontend import load_model
from tvm_winograd.gpu import parse_archs

SPEC = ConvSpec(n=1, c=8, h=6, w=6, k=8)


@pytest.fixture(scope="module")
def artifact(tmp_path_factory):
    return write(tmp_path_factory.mktemp("with spaces é") / "art", labels=["a"] * WIDTH)


def output_of(capsys, *args):
    """(exit code, stdout); stderr must hold no traceback."""
    try:
        code = main([str(a) for a in args])
    except SystemExit as error:
        code = error.code
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    return code, out


def test_json_is_one_document_of_real_json(artifact, tmp_path, capsys):
    x = np.full((BATCH, WIDTH), np.inf, "float32")
    np.save(tmp_path / "x.npy", x)
    args = ["run", artifact.path, tmp_path / "x.npy", "--repeats", 1, "--json"]
    code, out = output_of(capsys, *args)
    assert code == 0
    json.loads(out, parse_constant=pytest.fail)
    code, out = output_of(capsys, "env", "--cpp-flags", "--json")
    assert code == 0 and "-ltvm_runtime" in json.loads(out)["cpp_flags"]
    common.print_json({"a": [math.inf, (math.nan, 1.5)]})
    assert json.loads(capsys.readouterr().out) == {"a": [None, [None, 1.5]]}


def test_exit_code_2_without_a_document(artifact, tmp_path, capsys):
    file = tmp_path / "file"
    file.write_text("")
    for args in (
        ["show", "resnet18", "--logs", tmp_path / "absent"],
        ["run", artifact.path, file, "--device", "cpu:99999999999999999999"],
        ["compile", "resnet18", "-o", file],
        ["compile", "resnet18", "-o", file / "below"],
        ["compile", "resnet18", "-o", "/"],
        ["compile", "resnet18", "-o", "x" * 300],
        ["compile", "resnet18", "-o", tmp_path / "x", "--target", "cuda", "--arch", ""],
        ["verify", artifact.path, "--batch", BATCH + 1],
        ["verify", artifact.path, "--target", "cuda"],
        ["verify", artifact.path],
    ):
        assert output_of(capsys, *args, "--json") == (2, ""), args


def test_an_artifact_runs_on_after_its_folder_is_gone(tmp_path):
    runner = write(tmp_path / "a", labels=["b", "c"]).load()
    (tmp_path / "a").rename(tmp_path / "gone")
    assert runner.labels == ["b", "c"]
    x = np.zeros((BATCH, WIDTH), "float32")
    assert runner.run(x).shape == x.shape


def test_several_threads_may_share_a_runner(tmp_path, rng):
    runner = write(tmp_path / "a").load()
    x = rng.standard_normal((BATCH, WIDTH)).astype("float32")
    want = runner.run(x)
    with ThreadPoolExecutor(4) as pool:
        for got in pool.map(lambda _: runner.run(x), range(200)):
            np.testing.assert_array_equal(got, want)


def test_a_manifest_with_another_number_of_parameters(tmp_path):
    path = write(tmp_path / "a").path / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["modules"][0]["params"]["names"].pop()
    path.write_text(json.dumps(manifest))
    with pytest.raises(ArtifactError, match="holds 4 parameters, the manifest names 3"):
        tvm_winograd.load(path.parent)


def test_output_is_checked_before_the_work(tmp_path):
    steps = []
    (tmp_path / "file").write_text("")
    with pytest.raises(ArtifactError, match="not a folder"):
        tvm_winograd.compile("resnet18", output=tmp_path / "file", progress=steps.append)
    assert not steps


@pytest.mark.parametrize(
    "compiler, words",
    [("/absent", "is no program"), ("ccache g++", "without arguments"),
     ("false", "could not link"), ("true", "made no library")],
)  # fmt: skip
def test_compilers_that_do_not_link(compiler, words, tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", compiler)
    with pytest.raises(BuildError, match=words):
        write(tmp_path / "a", built())  # linked before anything is written
    assert not list(tmp_path.iterdir())


def test_a_label_for_each_class(tmp_path):
    with pytest.raises(InputError, match="2 labels"):
        tvm_winograd.compile("resnet18", output=tmp_path / "a", labels=["cat", "dog"])


@pytest.mark.parametrize("batch", ["4", 2.0, True, 0])
def test_batches_that_are_no_number_of_images(batch):
    with pytest.raises(ModelError, match="positive"):
        load_model("resnet18", batch=batch)


def test_architectures():
    for wrong in ("", ",", "sm_1"):
        with pytest.raises(UnsupportedError):
            parse_archs(wrong)
    with pytest.raises(UnsupportedError, match="supported are"):
        hardware_for("cuda", ["sm_90"])


@pytest.mark.parametrize(
    "values",
    [{"n": 1.0}, {"n": True}, {"n": "1"}, {"padding": 1.5}, {"padding": (1, 1, 1, 1.7)},
     {"padding": None}, {"padding": "1111"}, {"padding": (1, 1)}, {"dtype": []},
     {"stride": (1, 2, 3)}],
)  # fmt: skip
def test_sizes_are_integers_not_rounded(values):
    with pytest.raises(SpecError):
        ConvSpec(**{"n": 1, "c": 8, "h": 6, "w": 6, "k": 8, **values})


def test_numpy_integers_are_integers():
    spec = ConvSpec(n=np.int64(1), c=8, h=6, w=np.int32(6), k=8, padding=[np.int8(1)] * 4)
    assert spec == SPEC and spec.key() == SPEC.key()
    with pytest.raises(SpecError, match="ConvSpec is needed"):
        conv2d(SPEC.key())


def test_arrays_of_one_convolution(rng):
    conv = conv2d(SPEC)
    x, w = (rng.standard_normal(s).astype("float32") for s in (SPEC.input_shape, SPEC.weight_shape))
    want, packed = conv(x, w), conv.pack(w)
    np.testing.assert_array_equal(conv(np.asfortranarray(x), w), want)
    for call in (
        lambda: conv(x.tolist(), w),
        lambda: conv(x.astype(">f4"), w),
        lambda: conv(x, w[:4]),
        lambda: conv(x, w, x),
        lambda: conv.run(x, w),  # not packed
        lambda: conv.run(x, packed, out=np.zeros(3, "float32")),
    ):
        with pytest.raises(InputError):
            call()


def test_output_over_an_input(rng):
    """Kernels read a residual while they store, and some elements are stored twice."""
    import tvm

    conv = conv2d(SPEC, residual=True)
    x, w, r = (
        tvm.runtime.tensor(rng.standard_normal(shape).astype("float32"))
        for shape in (SPEC.input_shape, SPEC.weight_shape, SPEC.output_shape)
    )
    packed = conv.pack(w)
    with pytest.raises(InputError, match="out shares memory with residual"):
        conv.run(x, packed, r, out=r)
    assert np.isfinite(conv.run(x, packed, r).numpy()).all()


def test_dlpack_that_cannot_be_shared():
    torch = pytest.importorskip("torch")
    conv, w = conv2d(SPEC), torch.zeros(SPEC.weight_shape)
    for x in (torch.zeros(SPEC.input_shape).transpose(2, 3), torch.zeros(289)[1:].view(1, 8, 6, 6)):
        with pytest.raises(InputError, match="DLPack"):
            conv(x, w)


@pytest.mark.parametrize(
    "algorithm, target", [("winograd", "llvm"), ("direct", "llvm"), ("winograd", "cuda")]
)
@pytest.mark.parametrize("value", ["a", None, 3.5, -1])
def test_config_fields_of_the_wrong_type(algorithm, target, value):
    from dataclasses import fields, replace

    from tvm_winograd.choose.select import Epilogue, choose

    hardware = hardware_for(target, None)
    config = choose(SPEC, Epilogue(), hardware, algorithm=algorithm).config
    for field in fields(config):
        changed = replace(config, **{field.name: value})
        with pytest.raises(UnsupportedError):
            choose(SPEC, Epilogue(), hardware, algorithm=algorithm, config=changed)


@pytest.mark.parametrize("target", ["llvm", "cuda"])
def test_giants_are_refused_at_once(target):
    for sizes in ({"c": 2**20, "k": 2**20}, {"n": 2**40}, {"padding": 10**6}):
        with pytest.raises(TvmWinogradError):
            conv2d(ConvSpec(**{"n": 1, "c": 8, "h": 6, "w": 6, "k": 8, **sizes}), target)


def test_layers_larger_than_their_map(tmp_path):
    pytest.importorskip("onnx")
    from onnx import TensorProto, helper, numpy_helper, save

    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in
            (("x", [1, 8, 2, 2]), ("y", None)))  # fmt: skip
    weight = numpy_helper.from_array(np.ones((8, 8, 3, 3), "float32"), "w")
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"])], "g", [x], [y], [weight]
    )
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "n.onnx")
    with pytest.raises(ModelError, match="without elements"):
        load_model(tmp_path / "n.onnx")


def test_models_without_a_batch(rng):
    torch = pytest.importorskip("torch")

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.p = torch.nn.Parameter(torch.ones(2, 2))

        def forward(self, *x):
            return sum(x, self.p)

    for inputs, words in (((), "no input"), ((torch.tensor(1.0),), "scalar")):
        with pytest.raises(ModelError, match=words):
            load_model(torch.export.export(Net().eval(), inputs))


def test_a_nan_reaches_the_outputs_that_a_direct_convolution_gives_it(rng):
    """docs/numerics.md, for every position in a tile."""
    direct, winograd = (conv2d(SPEC, algorithm=a) for a in ("direct", "winograd-f2"))
    w = rng.standard_normal(SPEC.weight_shape).astype("float32")
    for row, column in np.ndindex(SPEC.h, SPEC.w):
        x = rng.standard_normal(SPEC.input_shape).astype("float32")
        x[0, 3, row, column] = np.nan
        np.testing.assert_array_equal(np.isnan(winograd(x, w)), np.isnan(direct(x, w)))
