"""What the CPU schedules share: the register budget and the balance of parallel work."""

from __future__ import annotations

from collections.abc import Callable

from tvm_winograd.te.common import ceil_div

# vector bits -> (accumulators, preferred vectors of filters) of a register tile. AVX-512 has 32
# registers and takes a broadcast as an operand of the FMA. The others have 16 and a broadcast is
# an instruction, so two vectors of filters share it.
REGISTER_TILE = {512: (28, 1), 256: (12, 2), 128: (12, 2)}
FMA_LATENCY = 8  # independent sums that keep the pipes full: 2 pipes, 4 cycles


def pixel_tile(
    rows: int, cols: int, vectors: int, budget: int, then: Callable[[int, int], int]
) -> tuple[int, int]:
    """(h, w) of a register tile of pixels that covers rows x cols in the fewest cycles.

    Args:
        vectors: of filters; h * w * vectors accumulators fit `budget`.
        then: of (h, w), to be least among equals.
    """

    def cost(tile: tuple[int, int]) -> tuple[int, int]:
        h, w = tile
        cycles = max(h * w * vectors, FMA_LATENCY) + vectors
        return ceil_div(rows, h) * ceil_div(cols, w) * cycles, then(h, w)

    most = budget // vectors
    return min(
        ((h, w) for h in range(1, min(most, rows) + 1) for w in range(1, min(most // h, cols) + 1)),
        key=cost,
    )


def uneven(tasks: int, cores: int) -> bool:
    """True when `tasks` equal tasks leave the cores idle for over a tenth of the time."""
    return tasks < 0.9 * ceil_div(tasks, cores) * cores
