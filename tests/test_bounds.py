"""No GPU kernel touches memory outside its arrays: run between unreadable pages on the CPU."""

from __future__ import annotations

import pytest
from cuda_kernels import check_bounds

from tvm_winograd import ConvSpec

# (spec, algorithm): both kernels, padded and not, ragged in every size, stems and strides
CASES = [
    (ConvSpec(2, 4, 9, 13, 4), "winograd"),
    (ConvSpec(3, 5, 7, 7, 70, padding=(2, 0, 1, 2), layout="NHWC"), "winograd"),
    (ConvSpec(1, 9, 6, 5, 3, padding=(0, 0, 0, 0)), "winograd"),
    # TVM simplifies what the packing of 256 channels reads: illegal addresses on an H200
    (ConvSpec(1, 256, 4, 4, 256), "winograd-f2"),
    (ConvSpec(2, 3, 22, 18, 16, r=7, s=7, stride=2, padding=(3, 3, 3, 3)), "direct"),
    (ConvSpec(2, 16, 9, 9, 24, stride=2), "direct"),
    (ConvSpec(2, 16, 9, 9, 24, r=1, s=1, stride=2, padding=(0, 0, 0, 0)), "direct"),
    (ConvSpec(1, 8, 9, 9, 8, dilation=2, padding=(2, 2, 2, 2)), "direct"),
    (ConvSpec(1, 8, 9, 9, 8, stride=2, groups=8, layout="NHWC"), "direct"),
]


@pytest.mark.parametrize(("spec", "algorithm"), CASES, ids=lambda v: getattr(v, "key", str)())
def test_inside_its_arrays(spec, algorithm):
    check_bounds(spec, algorithm)
