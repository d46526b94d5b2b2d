"""What every register-tiled GEMM of ours shares: filters x tiles of a block and a thread."""

from __future__ import annotations


class RegisterTile:
    """Mixin of a config: a block of bk filters x bp tiles, a thread of tk x tp of them."""

    bk: int
    bp: int
    tk: int
    tp: int

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

    def malformed_tile(self, *positive: str) -> str | None:
        """None, or what is wrong with the tile or the fields that must be positive."""
        for name in ("bk", "bp", "tk", "tp", *positive):
            if (value := getattr(self, name)) < 1:
                return f"{name}={value}: a positive integer is needed"
        if self.tk % 4 or self.tp % 4:
            return f"tk={self.tk}, tp={self.tp}: multiples of 4 (16-byte accesses) are needed"
        if self.bk % self.tk or self.bp % self.tp:
            return f"a {self.tk}x{self.tp} thread tile does not divide {self.bk}x{self.bp}"
        return None
