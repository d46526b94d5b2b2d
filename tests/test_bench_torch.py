"""torch's function of a convolution, on the CPU."""

from __future__ import annotations

import pytest
from convs import expected, random_arrays

from tvm_winograd.bench.conv.provider import PEER_LIMIT
from tvm_winograd.bench.conv.torch import conv_of
from tvm_winograd.shapes import ConvSpec, Epilogue
from tvm_winograd.truth import reference
from tvm_winograd.truth.tolerances import tolerance

torch = pytest.importorskip("torch")
EPILOGUES = ("none", "bias", "residual+relu", "bias+residual+relu", "bias+relu6")


@pytest.mark.parametrize("epilogue", [Epilogue.from_key(e) for e in EPILOGUES], ids=EPILOGUES)
@pytest.mark.parametrize("padding", [(1, 1, 1, 1), (1, 0, 2, 1)], ids=str)
def test_the_convolution_is_right(epilogue, padding):
    spec = ConvSpec(n=2, c=8, h=9, w=7, k=6, padding=padding)
    arrays = random_arrays(spec, epilogue)
    got = conv_of(spec, epilogue)(*map(torch.from_numpy, arrays)).numpy()
    error = reference.relative_error(got, expected(spec, epilogue, arrays))
    assert error <= tolerance(spec, PEER_LIMIT)


def test_torch_compile_can_trace_it():
    spec, epilogue = ConvSpec(n=2, c=8, h=9, w=7, k=6), Epilogue(bias=True, relu=True)
    arrays = [torch.from_numpy(array) for array in random_arrays(spec, epilogue)]
    function = conv_of(spec, epilogue)
    traced = torch.compile(function, backend="eager", fullgraph=True, dynamic=False)
    assert torch.equal(traced(*arrays), function(*arrays))
