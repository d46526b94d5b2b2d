"""What the CPU schedules share: the register budget and the balance of parallel work."""

from __future__ import annotations

from tvm_winograd.te.common import ceil_div

# vector bits -> (accumulators, preferred vectors of filters) of a register tile. AVX-512 has 32
# registers and takes a broadcast as an operand of the FMA. The others have 16 and a broadcast is
# an instruction, so two vectors of filters share it.
REGISTER_TILE = {512: (28, 1), 256: (12, 2), 128: (12, 2)}
FMA_LATENCY = 8  # independent sums that keep the pipes full: 2 pipes, 4 cycles


def uneven(tasks: int, cores: int) -> bool:
    """True when `tasks` equal tasks leave the cores idle for over a tenth of the time."""
    return tasks < 0.9 * ceil_div(tasks, cores) * cores
