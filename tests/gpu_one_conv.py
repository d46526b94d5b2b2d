"""One launch of the fused kernel, checked, for compute-sanitizer: gpu_one_conv.py n c h w k"""

from __future__ import annotations

import sys

from convs import error_of
from gpu import local_arch

from tvm_winograd import ConvSpec, conv2d
from tvm_winograd.truth.tolerances import tolerance

n, c, h, w, k = map(int, sys.argv[1:])
spec = ConvSpec(n, c, h, w, k)
compiled = conv2d(spec, "cuda", local_arch(), "winograd-f2", bias=True, relu=True)
error = error_of(compiled)
print(f"relative error {error:.2e}")
sys.exit(error > tolerance(spec, "winograd-f2"))
