"""The built-in networks beside the ResNets: against torch, verified on llvm, built for CUDA."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gpu import local_arch, needs_gpu

import tvm_winograd
from tvm_winograd.bench.network.torch_networks import torch_network
from tvm_winograd.check.verify import verify
from tvm_winograd.errors import ModelError
from tvm_winograd.frontend import builtin
from tvm_winograd.frontend.builtin import builtin_model
from tvm_winograd.frontend.mobilenet import MobileNetV2Config
from tvm_winograd.frontend.unet import UNetConfig
from tvm_winograd.frontend.vgg import VGGConfig
from tvm_winograd.frontend.weights import random_images
from tvm_winograd.truth.evaluate import evaluate
from tvm_winograd.truth.reference import relative_error

# every kind of layer of each family, small enough for seconds
STAGES = ((1, 8, 1, 1), (6, 12, 2, 2), (6, 16, 1, 2))
SMALL = {
    "vgg": VGGConfig((1, 2), 10, 3, 47, (8, 16), pooled=12, hidden=24),  # a long dense layer
    "mobilenet": MobileNetV2Config(STAGES, 10, image_size=33, stem=8, last=32),
    "bilinear": UNetConfig((8, 12, 16), image_size=24),
    "nearest": UNetConfig((8, 12), image_size=18, upsampling="nearest"),
    "transposed": UNetConfig((8, 12), image_size=18, upsampling="transposed"),
}


@pytest.fixture(scope="module", params=SMALL)
def network(request):
    """(configuration, Model)"""
    return SMALL[request.param], builtin_model(SMALL[request.param], request.param, batch=2)


def images(model) -> np.ndarray:
    return random_images(np.random.default_rng(1), model.inputs[0].shape)


def test_agrees_with_torch(network) -> None:
    config, model = network
    x = images(model)
    with torch.no_grad():
        want = torch_network(config, model.params).double()(torch.from_numpy(x).double()).numpy()
    got = evaluate(model.mod, model.params, [x])[0]
    assert got.shape == want.shape and relative_error(got, want) < 1e-12
    assert relative_error(got[:1], got[1:]) > 0.05 and got.std() > 0.05  # alive


def test_verified_on_this_cpu(network, tmp_path) -> None:
    _, model = network
    artifact = tvm_winograd.compile(model, output=tmp_path / "a")
    report = verify(artifact, model)
    assert report.ok, report


@pytest.mark.parametrize("name", [n for n in SMALL if n != "bilinear"])
def test_builds_for_cuda(name, tmp_path) -> None:
    model = builtin_model(SMALL[name], name)
    made = tvm_winograd.compile(model, target="cuda", output=tmp_path / "a", ptx=False)
    assert made.manifest["modules"][0]["kind"] == "cubin"


@pytest.mark.gpu
@needs_gpu
def test_verified_on_the_gpu(network, tmp_path) -> None:
    _, model = network
    made = tvm_winograd.compile(
        model, target="cuda", arch=local_arch(), output=tmp_path / "a", ptx=False
    )
    report = verify(made, model)
    assert report.ok, report


def test_parameter_counts_as_published() -> None:
    """Of torchvision's vgg11, 13, 16, 19 and mobilenet_v2 (weights and norms)."""
    published = {
        "vgg11": 132863336,
        "vgg13": 133047848,
        "vgg16": 138357544,
        "vgg19": 143667240,
        "mobilenetv2": 3504872,
    }
    for name, count in published.items():
        _, shapes = builtin.build(builtin.BUILTINS[name], 1)
        got = sum(int(np.prod(s)) for n, s in shapes.items() if "running" not in n)
        assert got == count, name


def test_impossible_unets_are_refused() -> None:
    with pytest.raises(ModelError, match="a multiple of 4"):
        builtin.build(UNetConfig(image_size=30), 1)
    with pytest.raises(ModelError, match="bilinear, nearest, transposed"):
        builtin.build(UNetConfig(upsampling="cubic"), 1)
