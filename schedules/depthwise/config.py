"""The knobs of the depthwise CUDA kernel, and the sizes that follow from them."""

from __future__ import annotations

from dataclasses import dataclass

from tvm_winograd.shapes import ConvSpec
from tvm_winograd.te import direct


@dataclass(frozen=True)
class Depthwise:
    """Sizes of a thread and a block, and where the input waits."""

    th: int = 8  # output rows a thread
    tw: int = 1  # output columns a thread; 1 keeps the lanes of NCHW on neighbours in memory
    tk: int = 1  # filters a thread, all of one group
    threads: int = 256  # a block; with `channels` it has what they need
    # The input under a thread's pixels is loaded once, to registers; else once for each tap, as
    # large filters need.
    patch: bool = True
    # NCHW, one filter a channel: this many whole maps a block, through shared memory; 0: none.
    channels: int = 0

    @property
    def tiling(self) -> direct.Tiling:
        return direct.Tiling(self.tk, self.th, self.tw, staged=True, wide_weights=True)

    @property
    def outputs(self) -> int:
        """Sums a thread has in registers."""
        return self.th * self.tw * self.tk

    def patch_size(self, spec: ConvSpec) -> int:
        """Input elements of a channel that a thread's pixels touch."""
        rows = _touched(self.th, spec.r, spec.strides[0], spec.dilations[0])
        return rows * _touched(self.tw, spec.s, spec.strides[1], spec.dilations[1])

    def grid(self, spec: ConvSpec) -> tuple[int, int, int, int]:
        """Threads along n, filters, rows and columns."""
        z = direct.sizes(spec, self.tiling)
        return spec.n, z.kb, z.hb, z.wb

    def shared_for(self, spec: ConvSpec) -> int:
        """Bytes of shared memory a block needs, at most."""
        return 4 * self.channels * spec.h * spec.w


def _touched(pixels: int, taps: int, stride: int, dilation: int) -> int:
    """Input rows (or columns) under some neighbouring output pixels."""
    return len({p * stride + t * dilation for p in range(pixels) for t in range(taps)})
