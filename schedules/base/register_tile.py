"""What every register-tiled GEMM of ours shares: filters x tiles of a block and a thread."""

from __future__ import annotations

from typing import Literal

from . import blocks

# How an operand reaches shared memory: by cp.async, or through a thread's registers.
Way = Literal["async", "registers"]


def next_power(n: int) -> int:
    """The least power of two that is not below `n`."""
    return 1 << (n - 1).bit_length()


class RegisterTile:
    """Mixin of a config: a block of bk filters x bp tiles, a thread of tk x tp of them."""

    bk: int
    bp: int
    tk: int
    tp: int
    bc: int  # channels, or products of a sum, a step
    lanes: str
    fragment: int = 4  # neighbouring words of a thread's operands

    @property
    def lane_k(self) -> int:
        """Threads along the filters of a block."""
        return self.bk // self.tk

    @property
    def lane_p(self) -> int:
        """Threads along the tiles of a block."""
        return self.bp // self.tp

    @property
    def accumulators(self) -> int:
        """fp32 registers of a thread for M."""
        return self.tk * self.tp

    def malformed_lanes(self) -> str | None:
        """None, or why `lanes`, bits of a k or p each, and the warps beside them do not fit."""
        k, p = (2 ** self.lanes.count(ch) for ch in "kp")
        if k * p != blocks.WARP or len(self.lanes) != 5:
            return f"lanes={self.lanes!r}: 5 bits, each k or p, are needed"
        if self.lane_k % k or self.lane_p % p:
            return f"lanes={self.lanes!r}: {k}x{p} do not divide {self.lane_k}x{self.lane_p}"
        if (threads := self.lane_k * self.lane_p) > 1024:
            return f"{threads} threads a block; at most 1024"
        return None

    def malformed_tile(self, *positive: str) -> str | None:
        """None, or what is wrong with the tile or the fields that must be positive."""
        for name in ("bk", "bp", "tk", "tp", *positive):
            if (value := getattr(self, name)) < 1:
                return f"{name}={value}: a positive integer is needed"
        if self.tk % self.fragment or self.tp % self.fragment:
            width = f"{self.fragment} ({4 * self.fragment}-byte accesses)"
            return f"tk={self.tk}, tp={self.tp}: multiples of {width} are needed"
        if self.bk % self.tk or self.bp % self.tp:
            return f"a {self.tk}x{self.tp} thread tile does not divide {self.bk}x{self.bp}"
        return None
