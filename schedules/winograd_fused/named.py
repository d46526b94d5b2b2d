"""Named configs: openCNN's kernel as knobs of ours, for CHWN (N contiguous, as in its figures).

R. L. Castro, D. Andrade, B. B. Fraguela, "OpenCNN: A Winograd Minimal Filtering Algorithm
Implementation in CUDA", Mathematics 2021, 9(17), 2033; code: github.com/UDC-GAC/openCNN.

What is mirrored, and where the paper says it:

    bk=64, bp=32, bc=8           256 threads a block, section 3 (cache block of b_k, b_n, b_c)
    tk=8, tp=8, points=2         two 8x8 outer products a thread, 128 accumulators: algorithm 1,
                                 lines 7 and 26 to 30
    lanes="pkkkp"                figure 4: lane bits 0 and 4 count input tiles, 1 to 3 filters
    weights="registers", copy=1, prefetch="after"
                                 algorithm 1, lines 3, 4 and 34 to 37: patches and transformed
                                 filters wait in registers, loaded word by word behind the
                                 arithmetic, and are stored when the next step begins
    buffers=1                    algorithm 1, lines 1 and 2: one buffer each, two barriers
    fragments=2                  algorithm 1, lines 8, 9 and 17 to 32: operands of the next
                                 channel are loaded during the arithmetic of this one
    rounds=4                     section 3, figure 5: 16 filters a round
    stores, loads, tiles, compact, m_buffers
                                 section 4 and the code's four output transforms

The filter transform is a kernel of its own in both (figure 3, variant FX).

What is not: a thread's two points are neighbours here, eight apart there (constant offsets, the
same instructions); U and V are (c, e, ...) in shared memory here, (e, c, ...) there, likewise;
borders are guarded by comparisons here, by a bit mask there. "opencnn-base" has the widths and the
padding of the reference layout (figure 5) but lets all lanes store in each round: there rounds are
over lanes, so that half of a warp stores while the other half waits, which no split of loops says.
"""

from __future__ import annotations

from dataclasses import replace

from .config import Fused

# 16-byte stores, rows of filters padded by 8 words, 4-byte loads: figure 5, the layout of the
# reference implementation (Yan, Wang and Chu, PPoPP 2020). Section 4 attacks its divergence.
_BASE = Fused(
    tk=8,
    points=2,
    lanes="pkkkp",
    weights="registers",
    prefetch="after",
    copy=1,
    fragments=2,
)
# 8-byte stores by all lanes (section 4, table 1: STS.64), of every second tile: behind two 4-byte
# loads a thread has two neighbouring tiles and stores 8 bytes to the output. What openCNN builds
# unless told otherwise.
_STS64 = replace(_BASE, stores=2, tiles=2)

NAMED: dict[str, Fused] = {
    "opencnn": _STS64,
    "opencnn-base": _BASE,
    "opencnn-sts64": _STS64,
    # Each row is rotated instead of padded: two rounds fit into the 64 KB of a Turing SM.
    "opencnn-sts64-compact": replace(_STS64, compact=True, m_buffers=2),
    # 8-byte stores of neighbouring tiles, 8-byte loads of the same.
    "opencnn-lds64": replace(_STS64, loads=2),
}
