"""The knobs of the tensor-core kernels: sizes of a block, and what follows from them."""

from __future__ import annotations

from dataclasses import dataclass

STEP = 32  # products of a step: a row of 128 bytes in shared memory
ROW_BYTES = 128
VECTOR = 4  # channels that a thread copies at once
WARPGROUP = 128  # threads
TILES = ((128, 128), (192, 64), (128, 64))  # (rows, filters): what registers hold
_ALIGNMENT = 1024  # bytes: a stage begins at a multiple, TVM's shared memory need not
_BARRIER = 8  # bytes
_WINDOW = 8  # bytes: where a row's window begins, its place on the map
_WORD = 4  # bytes: where a row of a patch begins


@dataclass(frozen=True)
class TensorCore:
    """Sizes of a block, and how data moves. The defaults suit a long reduction."""

    rows: int = 128  # output pixels of a tile
    filters: int = 128  # of a tile
    promote: int = 2  # steps of 32 products, after which sums leave the tensor core
    stages: int = 6  # of shared memory, a step each
    # Rows of 128 bytes that a patch of the input has room for: 32 channels of all that a tile looks
    # at, copied once for all taps; 0: each tap is gathered anew.
    patch: int = 0
    # Consumers take turns to start their products, so that one splits while another multiplies
    ordered: bool = True
    blocks: int = 132  # of a full grid, one an SM; each takes tiles in turn
    # Blocks that divide the steps of the last tiles, those that fill no wave, among them; 0: none
    shares: int = 0

    @property
    def sum_threads(self) -> int:
        """Of a block of the kernel that sums shares: a warpgroup every 64 rows."""
        return self.rows // 64 * WARPGROUP

    @property
    def threads(self) -> int:
        """Of a block: the consumers, and a warpgroup that copies."""
        return self.sum_threads + WARPGROUP

    @property
    def stage_bytes(self) -> int:
        return (self.filters + (0 if self.patch else self.rows)) * ROW_BYTES

    @property
    def shared_bytes(self) -> int:
        """Of a block: stages, two patches, two tables of where rows begin, barriers."""
        stages = self.stages * self.stage_bytes + 2 * self.patch * ROW_BYTES
        tables = 2 * (_WORD * self.patch if self.patch else _WINDOW * self.rows)
        return _ALIGNMENT + stages + tables + 2 * _BARRIER * (self.stages + 2)

    @property
    def pieces(self) -> int:
        """Blocks of the kernel that sums shares, for one tile: 16 filters each."""
        return self.filters // 16

    @property
    def cuda(self) -> str:
        """The C++ type of these knobs in wgmma.cuh."""
        values = (self.rows, self.filters, self.promote, self.stages, self.patch)
        ordered = str(self.ordered).lower()
        return f"tensor_core::Config<{', '.join(map(str, values))}, {ordered}>"
