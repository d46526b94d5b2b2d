"""A network trained on real data keeps its accuracy exactly."""

from __future__ import annotations

import numpy as np
import pytest

import tvm_winograd
from tvm_winograd.frontend.builtin import builtin_model
from tvm_winograd.frontend.resnet import ResNetConfig

torch = pytest.importorskip("torch")
datasets = pytest.importorskip("sklearn.datasets")
from tvm_winograd.bench.network.torch_resnet import TorchResNet  # noqa: E402

CONFIG = ResNetConfig("basic", (1, 1), 10, 1, 8, (16, 32), small_stem=True)
TEST = 360  # of 1797 handwritten digits, 8x8 pixels


def train(images, labels, epochs=6):
    """A few epochs of Adam: over 90 % on digits it has not seen."""
    torch.manual_seed(0)
    net = TorchResNet(CONFIG).train()
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    for _ in range(epochs):
        for batch in torch.randperm(len(images)).split(64):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(net(images[batch]), labels[batch])
            loss.backward()
            optimizer.step()
    return net.eval()


def test_digits_accuracy_is_unchanged(tmp_path):
    from safetensors.numpy import save_file

    images, labels = datasets.load_digits(return_X_y=True)
    images = ((images - images.mean()) / images.std()).astype("float32").reshape(-1, 1, 8, 8)
    net = train(torch.from_numpy(images[TEST:]), torch.from_numpy(labels[TEST:]))
    weights = tmp_path / "digits.safetensors"
    save_file({n: p.detach().numpy().copy() for n, p in net.state_dict().items()}, weights)
    with torch.no_grad():
        theirs = net(torch.from_numpy(images[:TEST])).numpy().argmax(1)

    model = builtin_model(CONFIG, "digits", batch=TEST, weights=weights)
    for algorithm in ("auto", "winograd"):
        artifact = tvm_winograd.compile(model, output=tmp_path / algorithm, algorithm=algorithm)
        ours = artifact.run(np.ascontiguousarray(images[:TEST])).argmax(1)
        used = {layer["algorithm"] for layer in artifact.manifest["modules"][0]["layers"]}
        assert algorithm == "auto" or "winograd-f2" in used
        np.testing.assert_array_equal(ours, theirs)
        assert (ours == labels[:TEST]).mean() == (theirs == labels[:TEST]).mean() > 0.9
