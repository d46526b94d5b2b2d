"""Activations in networks: as importers spell them, verified, in the store of convolutions."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import tvm_winograd
from tvm_winograd import ConvSpec, Epilogue, activation, conv2d
from tvm_winograd.activation import Activation, X, op
from tvm_winograd.check.verify import verify
from tvm_winograd.choose.select import choose
from tvm_winograd.frontend import load_model
from tvm_winograd.gpu import gpu_for, host_cpu
from tvm_winograd.passes.pipeline import lower
from tvm_winograd.truth.reference import relative_error

HARDWARE = {"llvm": host_cpu(), "sm_90": gpu_for("sm_90")}


class Conv(nn.Sequential):
    """Convolution, batch norm, activation."""

    def __init__(self, c, k, size=3, stride=1, act=None, groups=1):
        layers = [nn.Conv2d(c, k, size, stride, size // 2, groups=groups, bias=False)]
        super().__init__(*layers, nn.BatchNorm2d(k), *([act] if act else []))


class Yolo(nn.Module):
    """A CSP block with SiLU, a residual inside, a concatenation, LeakyReLU and PReLU behind."""

    def __init__(self):
        super().__init__()
        self.stem = Conv(3, 8, 3, 2, nn.SiLU())
        self.left, self.right = Conv(8, 8, 1, act=nn.SiLU()), Conv(8, 8, 1, act=nn.SiLU())
        self.one, self.two = Conv(8, 8, 1, act=nn.SiLU()), Conv(8, 8, 3, act=nn.SiLU())
        self.join = Conv(16, 12, 1, act=nn.LeakyReLU(0.1))
        self.down, self.head = Conv(12, 12, 3, 2, nn.PReLU()), nn.Conv2d(12, 5, 1)

    def forward(self, x):
        x = self.stem(x)
        left = self.left(x)
        left = left + self.two(self.one(left))
        x = self.join(torch.cat([left, self.right(x)], 1))
        return torch.sigmoid(self.head(self.down(x)))


class SqueezeExcite(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.down, self.up = nn.Conv2d(c, 8, 1), nn.Conv2d(8, c, 1)

    def forward(self, x):
        scale = self.down(x.mean((2, 3), keepdim=True))
        return x * functional.hardsigmoid(self.up(functional.relu(scale)))


class MobileNetV3(nn.Module):
    """A stem and an inverted residual with squeeze and excitation, HardSwish throughout."""

    def __init__(self):
        super().__init__()
        self.stem = Conv(3, 8, 3, 2, nn.Hardswish())
        self.expand = Conv(8, 24, 1, act=nn.Hardswish())
        self.deep = Conv(24, 24, 5, 1, nn.Hardswish(), groups=24)
        self.squeeze, self.project = SqueezeExcite(24), Conv(24, 8, 1)
        self.last = Conv(8, 16, 1, act=nn.GELU())

    def forward(self, x):
        x = self.stem(x)
        return self.last(x + self.project(self.squeeze(self.deep(self.expand(x)))))


WANT = {
    Yolo: ["bias+silu"] * 5 + ["bias+leaky_relu(0.1)", "bias+prelu(0.25)", "bias+sigmoid"],
    MobileNetV3: [
        *["bias+hard_swish"] * 3, "bias+relu", "bias+hard_sigmoid", "bias+residual", "bias+gelu",
    ],
}  # fmt: skip


def network(kind):
    """Seeded, in evaluation, with batch norms that do something."""
    torch.manual_seed(0)
    made = kind().eval()
    for module in made.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 1, 3)
            nn.init.normal_(module.bias)
            nn.init.normal_(module.running_mean)
            nn.init.uniform_(module.running_var, 0.5, 2)
    return made


def saved(made, how, folder, size=32):
    """The network's file, as one of three exporters writes it."""
    x, path = torch.randn(1, 3, size, size), folder / ("a.pt2" if how == "pt2" else "a.onnx")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if how == "pt2":
            torch.export.save(torch.export.export(made, (x,)), path)
        else:
            torch.onnx.export(made, (x,), path, dynamo=how == "dynamo", verbose=False)
    return path


@pytest.mark.parametrize("how", ["pt2", "onnx"])
@pytest.mark.parametrize("kind", [Yolo, MobileNetV3])
def test_block(kind, how, tmp_path):
    """Right beside torch in float64, verified, each activation in a store, none by itself."""
    made = network(kind)
    artifact = tvm_winograd.compile(str(saved(made, how, tmp_path)), output=tmp_path / "a")
    x = np.random.default_rng(3).standard_normal((1, 3, 32, 32)).astype("f4")
    with torch.no_grad():
        want = made.double()(torch.from_numpy(x.astype("f8"))).numpy()
    assert relative_error(artifact.load().run(x), want) < 1e-6
    (module,) = json.loads((artifact.path / "manifest.json").read_text())["modules"]
    assert sorted(layer["epilogue"] for layer in module["layers"]) == sorted(WANT[kind])
    assert {layer["math"] for layer in module["layers"]} == {"fma"}
    assert_nothing_left(module["functions"], module["layers"])
    report = verify(artifact, load_model(str(tmp_path / f"a.{how}")))
    assert report.ok, report


@pytest.mark.parametrize("kind", [Yolo, MobileNetV3])
def test_block_for_a_gpu(kind, tmp_path):
    path = str(saved(network(kind), "pt2", tmp_path))
    for layout in ("NCHW", "NHWC"):
        artifact = tvm_winograd.compile(
            path, target="cuda", arch="sm_90", layout=layout, ptx=False, output=tmp_path / layout
        )
        (module,) = artifact.manifest["modules"]
        assert sorted(layer["epilogue"] for layer in module["layers"]) == sorted(WANT[kind])
        assert_nothing_left(module["functions"], module["layers"])


def assert_nothing_left(functions, layers):
    """No function but the convolutions' has an activation."""
    convs = {layer["function"] for layer in layers}
    names = [f["name"] for f in functions if f["name"] not in convs]
    words = ("sigmoid", "silu", "leaky", "prelu", "gelu", "erf", "clip", "maximum", "where", "relu")
    assert names and not [n for n in names if any(word in n for word in words)], names


class Single(nn.Module):
    def __init__(self, act):
        super().__init__()
        self.conv, self.act = nn.Conv2d(3, 4, 3), act

    def forward(self, x):
        return self.act(self.conv(x))


SPELLED = {
    "relu": [nn.ReLU()],
    "relu6": [nn.ReLU6(), nn.Hardtanh(0, 6)],
    "silu": [nn.SiLU(), lambda x: x * torch.sigmoid(x), lambda x: torch.sigmoid(x) * x],
    "hard_swish": [
        nn.Hardswish(),
        lambda x: x * functional.relu6(x + 3) / 6,
        lambda x: x * (functional.relu6(x + 3) / 6),
        lambda x: functional.hardsigmoid(x) * x,
        lambda x: x * (functional.relu6(3 + x) * (1 / 6)),
    ],
    "hard_sigmoid": [nn.Hardsigmoid(), lambda x: functional.relu6(x + 3) / 6],
    "leaky_relu(0.1)": [nn.LeakyReLU(0.1)],
    "prelu(0.25)": [nn.PReLU(), lambda x: torch.where(x > 0, x, 0.25 * x)],
    "sigmoid": [nn.Sigmoid()],
    "gelu": [
        nn.GELU(),
        lambda x: x * 0.5 * (1 + torch.erf(x / 2**0.5)),
        lambda x: 0.5 * x * (1 + torch.erf(x * 0.5**0.5)),
    ],
}
CASES = [
    pytest.param(text, form, how, id=f"{text}-{number}-{how}")
    for text, forms in SPELLED.items()
    for number, form in enumerate(forms)
    for how in ("pt2", "onnx", *["dynamo"] * (number == 0))
]


def epilogues(made, how, path, target="llvm", layout="NCHW"):
    """Of the convolutions of a network, as it would be built."""
    model, hardware = load_model(str(saved(made.eval(), how, path, 8))), HARDWARE[target]
    lowered = lower(
        model.mod, model.params, hardware, lambda _, *conv: choose(*conv, hardware), layout=layout
    )
    assert len(lowered.params) >= 2 * len(lowered.layers)
    return [layer.epilogue.key() for layer in lowered.layers]


@pytest.mark.parametrize(("text", "form", "how"), CASES)
def test_spelled(text, form, how, tmp_path):
    for target, layout in (("llvm", "NCHW"), ("sm_90", "NHWC")):
        assert epilogues(Single(form), how, tmp_path, target, layout) == [f"bias+{text}"]


@pytest.mark.parametrize(
    "form",
    [
        lambda x: x * torch.sigmoid(x) + x,  # x has another reader
        lambda x: torch.sigmoid(x) * torch.tanh(x),
        lambda x: x * torch.sigmoid(1.702 * x),
        lambda x: x * functional.relu6(x + 2) / 6,
        lambda x: x * functional.relu6(x + 3) / 5,
        lambda x: torch.where(x > 1, x, 0.25 * x),
        lambda x: functional.relu6(x + 3) / 6 + x,
        nn.PReLU(4),
        nn.GELU(approximate="tanh"),
        nn.Mish(),
    ],
)
def test_what_is_like_one_is_left(form, tmp_path):
    assert epilogues(Single(form), "pt2", tmp_path) == ["bias"]


def test_a_constant_between_is_read_by_others_too(tmp_path):
    """The sigmoid inside of a SiLU is a second output: nothing is swallowed."""

    class Two(Single):
        def forward(self, x):
            y = self.conv(x)
            gate = torch.sigmoid(y)
            return y * gate, gate

    assert epilogues(Two(nn.Identity()), "pt2", tmp_path) == ["bias"]


def undo_signed_square(conv):
    got = conv.at(1.0)
    return np.sign(got) * np.sqrt(np.abs(got))


SIGNED_SQUARE = Activation(
    "signed_square",
    numpy=lambda x: x * x * np.sign(x),
    tir=lambda t, x: t.Select(x < 0.0, -x * x, x * x),
    torch=lambda f, x: x * x * x.sign(),
    spelled=(op("multiply", op("multiply", X, X), op("sign", X)),),
    undo=undo_signed_square,
)


@pytest.fixture
def signed_square(monkeypatch):
    """An activation that nobody has: one entry, and nothing else."""
    monkeypatch.setitem(activation.ACTIVATIONS, SIGNED_SQUARE.name, SIGNED_SQUARE)


def test_an_entry_is_all_for_one_convolution(signed_square):
    spec = ConvSpec(1, 5, 9, 7, 6)
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s).astype("f4") for s in (spec.input_shape, spec.weight_shape))
    for algorithm in ("auto", "winograd", "direct", "im2win"):
        y = conv2d(spec, algorithm=algorithm)(x, w)
        got = conv2d(spec, algorithm=algorithm, activation="signed_square")(x, w)
        np.testing.assert_allclose(got, y * y * np.sign(y), rtol=1e-6)
    assert conv2d(spec, "cuda", "sm_90", activation="signed_square").source()
    key = Epilogue(bias=True, activation="signed_square").key()
    assert Epilogue.from_key(key).key() == key == "bias+signed_square"


def test_an_entry_is_all_for_a_network(signed_square, tmp_path):
    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = Conv(3, 8), Conv(8, 8)

        def forward(self, x):
            y = self.one(x)
            y = y * y * torch.sign(y)
            z = self.two(y) + y
            return torch.sign(z) * (z * z)

    made = network(Network)
    path = saved(made, "pt2", tmp_path, 12)
    artifact = tvm_winograd.compile(str(path), output=tmp_path / "a")
    layers = artifact.manifest["modules"][0]["layers"]
    want = ["bias+signed_square", "bias+residual+signed_square"]
    assert [layer["epilogue"] for layer in layers] == want
    report = verify(artifact, load_model(str(path)))
    assert report.ok, report
    x = np.random.default_rng(3).standard_normal((1, 3, 12, 12)).astype("f4")
    with torch.no_grad():
        right = made.double()(torch.from_numpy(x.astype("f8"))).numpy()
    assert relative_error(artifact.load().run(x), right) < 2e-6
