"""cuDNN's bindings with a library made of Python: what is called, with what, and its refusals."""

from __future__ import annotations

import ctypes
from contextlib import ExitStack

import pytest

from tvm_winograd.errors import DeviceError, UnsupportedError
from tvm_winograd.measure import cudnn_library
from tvm_winograd.measure.cudnn_library import ALGORITHMS, Cudnn, ForwardConv
from tvm_winograd.shapes import ConvSpec, Epilogue

SPEC = ConvSpec(n=2, c=8, h=10, w=12, k=16, padding=(1, 2, 1, 2))
FULL = Epilogue(bias=True, residual=True, relu=True)


def plain(value):
    """An argument as a number, references as what they refer to."""
    value = getattr(value, "_obj", value)
    return getattr(value, "value", value)


class FakeCudnn:
    def __init__(self, status: dict[str, int] | None = None) -> None:
        self.calls: list[tuple] = []
        self.live, self.made = set(), 0
        self.status = status or {}

    def __getattr__(self, name):
        def function(*arguments):
            short = name.removeprefix("cudnn")
            if short.startswith("Create"):
                self.made += 1
                arguments[0]._obj.value = self.made
                self.live.add(self.made)
            elif short.startswith("Destroy"):
                self.live.remove(arguments[0].value)
            elif short == "GetConvolutionForwardWorkspaceSize":
                arguments[-1]._obj.value = 1000 + arguments[-2]
            self.calls.append((short, *map(plain, arguments)))
            return self.status.get(short, 0)

        return function

    # plain functions: the bindings set their restype
    cudnnGetVersion = staticmethod(lambda: 91900)
    cudnnGetErrorString = staticmethod(lambda status: b"CUDNN_STATUS_NOT_SUPPORTED")

    def cudnnGetLastErrorString(self, text, size):
        text.value = b"no engine"

    def of(self, name):
        return [call[1:] for call in self.calls if call[0] == name]


def test_descriptors_are_of_the_convolution_without_tensor_cores():
    fake = FakeCudnn()
    with ExitStack() as made:
        ForwardConv(Cudnn(fake), made, 77, SPEC, FULL)
        assert fake.of("SetStream")[0][1] == 77
        shapes = [call[1:] for call in fake.of("SetTensor4dDescriptor")]
        assert shapes == [(0, 0, 2, 8, 10, 12), (0, 0, 2, 16, 10, 14), (0, 0, 1, 16, 1, 1)]
        assert fake.of("SetFilter4dDescriptor")[0][1:] == (0, 0, 16, 8, 3, 3)
        # padding, stride, dilation, cross-correlation, float
        assert fake.of("SetConvolution2dDescriptor")[0][1:] == (1, 2, 1, 1, 1, 1, 1, 0)
        assert fake.of("SetConvolutionMathType")[0][1] == 3  # CUDNN_FMA_MATH
    assert not fake.live


def run(epilogue: Epilogue) -> FakeCudnn:
    fake = FakeCudnn()
    with ExitStack() as made:
        conv = ForwardConv(Cudnn(fake), made, 0, SPEC, epilogue)
        size = conv.workspace_bytes(ALGORITHMS.index("WINOGRAD"))
        assert size == 1006
        conv.run(6, [11, 12, 13, 14, 15], (99, size))
    return fake


def test_bare_convolution():
    call = run(Epilogue()).of("ConvolutionForward")[0]
    handle, alpha, _x, x, _w, w, _conv, algorithm, workspace, size, beta, _y, y = call
    assert (x, w, y, workspace, size) == (11, 12, 15, 99, 1006)
    assert (alpha, beta, algorithm) == (1.0, 0.0, 6) and handle


@pytest.mark.parametrize("residual", [True, False])
def test_fused_epilogue(residual):
    fake = run(Epilogue(bias=True, residual=residual, relu=True))
    call = fake.of("ConvolutionBiasActivationForward")[0]
    assert call[3] == 11 and call[5] == 12
    alpha2, _z, z, _b, bias, _activation, _y, y = call[10:]
    assert (alpha2, z, bias, y) == (float(residual), 14, 13, 15)
    assert fake.of("SetActivationDescriptor")[0][1] == 1  # ReLU


def test_refusals_and_failures():
    with ExitStack() as made:
        refusing = Cudnn(FakeCudnn({"GetConvolutionForwardWorkspaceSize": 3007}))
        conv = ForwardConv(refusing, made, 0, SPEC, FULL)
        with pytest.raises(UnsupportedError, match=r"NOT_SUPPORTED no engine \(3007\)"):
            conv.workspace_bytes(0)
    with pytest.raises(DeviceError, match=r"cudnnSetStream: .*\(5000\)"), ExitStack() as made:
        ForwardConv(Cudnn(FakeCudnn({"SetStream": 5000})), made, 0, SPEC, FULL)
    lopsided = ConvSpec(n=1, c=8, h=8, w=8, k=8, padding=(0, 0, 1, 1))
    with pytest.raises(UnsupportedError, match="both sides"), ExitStack() as made:
        ForwardConv(Cudnn(FakeCudnn()), made, 0, lopsided, FULL)
    with pytest.raises(UnsupportedError, match="not relu6"), ExitStack() as made:
        ForwardConv(Cudnn(FakeCudnn()), made, 0, SPEC, Epilogue(relu6=True))


def test_version():
    assert Cudnn(FakeCudnn()).version() == "9.19.0"


def test_found_in_the_wheel_if_not_on_the_path(monkeypatch, tmp_path):
    tried = []

    def load(path):
        tried.append(str(path))
        if len(tried) < 2:
            raise OSError
        return ctypes.CDLL(None)

    (tmp_path / "nvidia").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(cudnn_library, "load", load)
    assert cudnn_library.load_cudnn() is not None
    assert tried[0] == "libcudnn.so.9" and tried[1].endswith("nvidia/cudnn/lib/libcudnn.so.9")
