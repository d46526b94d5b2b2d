"""Biases and linear weights that a frontend reshapes become parameters of the new shape."""

import numpy as np
import pytest

import tvm_winograd
from tvm_winograd.frontend import load_model
from tvm_winograd.truth import reference
from tvm_winograd.truth.evaluate import evaluate

torch = pytest.importorskip("torch")


class Net(torch.nn.Module):
    """Convolutions with bias and no batch norm, one of them grouped, and a linear layer."""

    def __init__(self):
        super().__init__()
        self.a = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.b = torch.nn.Conv2d(8, 8, 3, padding=1, groups=4)
        self.c = torch.nn.Conv2d(8, 6, 1, bias=False)
        self.fc = torch.nn.Linear(6, 5)

    def forward(self, x):
        y = torch.relu(self.a(x))
        y = torch.relu(self.b(y) + y)
        return self.fc(self.c(y).mean((2, 3)))


@pytest.mark.parametrize("form", ["pt2", "onnx"])
def test_bias_is_fused_and_nothing_is_reshaped_at_run_time(form, tmp_path):
    torch.manual_seed(0)
    net, x = Net().eval(), torch.randn(2, 3, 9, 9)
    path = tmp_path / f"net.{form}"
    if form == "pt2":
        torch.export.save(torch.export.export(net, (x,)), path)
    else:
        torch.onnx.export(net, (x,), path, dynamo=True, external_data=False, verbose=False)
    artifact = tvm_winograd.compile(path, output=tmp_path / "out")
    module = artifact.manifest["modules"][0]
    assert [layer["epilogue"] for layer in module["layers"]] == [
        "bias+relu",
        "bias+residual+relu",
        "none",
    ]
    names = [f["name"] for f in module["functions"]]
    assert not [n for n in names if "reshape" in n or "transpose" in n]
    got = artifact.run(np.ascontiguousarray(x.numpy()))
    model = load_model(path)
    want = evaluate(model.mod, model.params, [x.numpy()])[0]
    assert reference.relative_error(got, want) < 1e-6
    assert reference.relative_error(net(x).detach().numpy(), want) < 1e-6
