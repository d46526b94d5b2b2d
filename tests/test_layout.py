"""One memory layout for a network: what is chosen, what is converted, and that results stay."""

import json
from dataclasses import replace

import numpy as np
import pytest
from layout_networks import TO_NCHW, Net, resnet, segmenter, tensorflow_like
from tvm import relax

import tvm_winograd
from tvm_winograd import TvmWinogradError, cli
from tvm_winograd.check.inspect import choices_of
from tvm_winograd.check.verify import verify
from tvm_winograd.choose.chooser import make_chooser
from tvm_winograd.choose.options import Limits, Wishes
from tvm_winograd.frontend import load_model
from tvm_winograd.gpu import gpu_for
from tvm_winograd.passes import pipeline
from tvm_winograd.passes.choose_layout import choose_layout
from tvm_winograd.passes.convert_layout import cancel_transposes, is_in, transposed_bytes
from tvm_winograd.truth.evaluate import evaluate

H200 = gpu_for("sm_90")


@pytest.fixture(scope="module")
def models():
    return {
        (body, layout): Net(layout, kernel).model(body)
        for body in (resnet, segmenter)
        for layout, kernel in (("NCHW", "OIHW"), ("NHWC", "HWIO"))
    }


@pytest.fixture(scope="module")
def onnx_models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("onnx")
    return [tensorflow_like(folder / f"{t}.onnx", t) for t in (False, True)]


def images(model):
    return np.random.default_rng(1).standard_normal(model.inputs[0].shape).astype("float32")


def converted(model, layout):
    """The network with its convolutions in `layout`, its parameters, and how many transposes."""
    mod, params = pipeline.network_in(model.mod, model.params, layout)
    return mod, params, len(transposed_bytes(mod, params))


@pytest.mark.parametrize("body", [resnet, segmenter])
@pytest.mark.parametrize("given", ["NCHW", "NHWC"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_a_converted_network_computes_the_same(models, body, given, layout):
    """In float64; transposes are left at its ends only, and at a map's only."""
    model = models[body, given]
    mod, params, count = converted(model, layout)
    relax.analysis.well_formed(mod)
    assert is_in(mod, layout)
    assert count == (given != layout) * (2 if body is segmenter else 1)
    x = images(model)
    (got,), (want,) = (evaluate(m, p, [x]) for m, p in ((mod, params), (model.mod, model.params)))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)  # float32 weights were folded


def decided(model, **wishes):
    layers, layout = choices_of(model, H200, Wishes(**wishes))
    assert {layer.spec.layout for layer in layers} == {layout.chosen}
    return layout


def test_cuda_changes_the_layout_where_that_is_clearly_faster():
    """Tensor cores are worth the conversions; a few per cent of an estimate are not."""
    shape, fma = (16, 3, 224, 224), Limits(math="fma")
    layout = decided(load_model("resnet18", batch=32))
    assert (layout.chosen, layout.given) == ("NHWC", "NCHW")
    assert "1 transpose " in layout.reason
    large = Net("NHWC", shape=shape).model(segmenter)
    layout = decided(large, algorithm="winograd-f2", limits=fma)
    assert (layout.chosen, layout.given) == ("NHWC", "NHWC")
    assert "2 transposes" in layout.reason


def test_conversions_are_kernels_at_the_ends(models):
    """Lowered for a GPU: a transpose, convolutions in NCHW, a transpose."""
    phases = {}
    choose = make_chooser(H200, Wishes())
    model = models[segmenter, "NHWC"]
    lowered = pipeline.lower(
        model.mod, model.params, H200, choose, phases.__setitem__, layout="NCHW"
    )
    assert all("NCHW" in layer.spec.key() for layer in lowered.layers)
    calls = [b.value for b in phases["legalized"]["main"].body.blocks[0].bindings]
    names = [str(c.args[0].name_hint) for c in calls if c.op.name == "relax.call_tir"]
    assert ["transpose" in name for name in names] == [True, False, False, False, True]
    assert any("layout NCHW instead of NHWC" in note for note in lowered.notes)


def test_a_layout_is_forced(models):
    for given in ("NCHW", "NHWC"):
        for wish in ("NCHW", "NHWC"):
            layout = decided(models[segmenter, given], layout=wish)
            assert layout.as_dict() == {"chosen": wish, "given": given, "reason": "asked for"}
    with pytest.raises(TvmWinogradError, match="there are auto, NCHW, NHWC"):
        tvm_winograd.compile("resnet18", layout="CHWN")


def test_a_layout_that_a_limit_rules_out_is_passed_by(models):
    """An explicit config of one layout only; and the real error, if none is left."""
    model = models[segmenter, "NHWC"]
    layers, _ = choices_of(model, H200, Wishes(layout="NCHW", algorithm="gemm"))
    config = {layers[-1].name: replace(layers[-1].choice.config, store="pixels")}
    layout = decided(model, algorithm="gemm", configs=config)
    assert layout.chosen == "NCHW" and "no aligned neighbours" in layout.reason
    with pytest.raises(TvmWinogradError, match="none of the allowed"):
        decided(model, limits=Limits(("winograd-f4",), max_error=1e-9))


def test_an_nchw_network_stays_as_it_is():
    model = load_model("resnet18")
    net = pipeline.Network(model.mod, model.params)
    for step in pipeline.FOLD:
        step(net)
    mod, params = net.mod, net.params
    assert cancel_transposes(model.mod, model.params) is model.mod
    for wish in ("auto", "NCHW"):
        choose = make_chooser(H200, Wishes(), tables=False)
        same, same_params, layout = choose_layout(mod, params, H200, choose, wish)
        assert same is mod and same_params is params and layout.chosen == "NCHW"


def test_transposes_of_tensorflow_vanish(onnx_models):
    """Batch norm, which they part from its convolution, is folded too."""
    plain, transposed = onnx_models
    assert len(transposed_bytes(transposed.mod, transposed.params)) == 10
    mod, params, count = converted(transposed, "NCHW")
    assert count == 1  # of the input
    assert count_of(mod) == count_of(converted(plain, "NCHW")[0]) + 1
    x = images(transposed)
    (want,) = evaluate(plain.mod, plain.params, [x.transpose(TO_NCHW)])
    (got,) = evaluate(mod, params, [x])
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    assert converted(transposed, "NHWC")[2] == 0


def count_of(mod):
    return sum(len(block.bindings) for block in mod["main"].body.blocks)


def test_compiled_for_the_cpu(models, onnx_models, tmp_path):
    """What a network of NHWC maps, and one of TensorFlow's, compute; verified layer by layer."""
    plain, transposed = onnx_models
    for model, other, layout in (
        (models[resnet, "NHWC"], models[resnet, "NCHW"], "NHWC"),
        (transposed, plain, "NCHW"),
    ):
        artifact = tvm_winograd.compile(model, output=tmp_path / layout)
        (module,) = artifact.manifest["modules"]
        assert module["layout"]["chosen"] == module["layout"]["given"] == layout
        assert {layer["spec"].rsplit("_")[-1] for layer in module["layers"]} == {layout}
        x = images(model)
        (want,) = evaluate(other.mod, other.params, [x.transpose(TO_NCHW)])
        np.testing.assert_allclose(artifact.run(x), want, rtol=1e-4, atol=1e-5)
        report = verify(artifact, model)
        assert report.ok and len(report.layers) == len(module["layers"])


def test_a_forced_layout_on_the_cpu_by_command(tmp_path, capsys):
    tensorflow_like(tmp_path / "net.onnx", True)
    command = ["compile", str(tmp_path / "net.onnx"), "-o", str(tmp_path / "a"), "--json"]
    assert cli.main([*command, "--layout", "NHWC"]) == 0
    (module,) = json.loads(capsys.readouterr().out)["modules"]
    assert module["layout"] == {"chosen": "NHWC", "given": "NCHW", "reason": "asked for"}
    assert cli.main(["verify", str(tmp_path / "a"), "--model", str(tmp_path / "net.onnx")]) == 0
    show = ["show", str(tmp_path / "net.onnx"), "--target", "cuda"]
    assert cli.main(show) == 0
    assert "layout NHWC (given NCHW)" in capsys.readouterr().out
