"""Exact Winograd transforms F(m, r) as rationals: Y = A^T [(G g) * (B^T d)].

Construction: Toom-Cook interpolation at alpha - 1 finite points and infinity, transposed
(Lavin and Gray, arXiv 1509.09308; Winograd 1980). For F(2,3), F(4,3) and F(6,3) the result is
the papers' matrices literally.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import numpy as np

from .errors import UnsupportedError

Matrix = tuple[tuple[Fraction, ...], ...]
_POINTS = tuple(map(Fraction, ("0", "1", "-1", "2", "-2", "1/2", "-1/2", "4", "-4", "1/4", "-1/4")))


@dataclass(frozen=True)
class Transforms:
    """A^T (m, alpha), G (alpha, r), B^T (alpha, alpha) with alpha = m + r - 1."""

    m: int
    r: int
    at: Matrix
    g: Matrix
    bt: Matrix

    @property
    def alpha(self) -> int:
        return self.m + self.r - 1

    def arrays(self, dtype: str = "float64") -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(A^T, G, B^T) rounded once from the rationals to `dtype`."""
        at, g, bt = (np.array(x, dtype="float64").astype(dtype) for x in (self.at, self.g, self.bt))
        return at, g, bt


@cache
def cook_toom(m: int, r: int) -> Transforms:
    """The transforms of F(m, r): m outputs of an r-tap filter with m + r - 1 multiplications.

    Raises:
        UnsupportedError: m or r below 1, or alpha above 12 (no accuracy is left there).
    """
    alpha = m + r - 1
    if m < 1 or r < 1 or not 2 <= alpha <= len(_POINTS) + 1:
        raise UnsupportedError(
            f"F({m},{r}): supported are m, r >= 1 with 2 <= m + r - 1 <= {len(_POINTS) + 1}"
        )
    points = _POINTS[: alpha - 1]
    at = [[p**i for p in points] + [Fraction(i == m - 1)] for i in range(m)]
    g, bt = [], []
    for p in points:
        others = [q for q in points if q != p]
        scale = _product([p - q for q in others])
        # The papers print the row of point 0 with a positive G.
        sign = -1 if p == 0 and scale < 0 else 1
        g.append([sign * p**j / scale for j in range(r)])
        bt.append([sign * v for v in _from_roots(others)] + [Fraction(0)])
    g.append([Fraction(j == r - 1) for j in range(r)])
    bt.append(_from_roots(list(points)))
    if (m, r) == (2, 3):  # Lavin prints the point at infinity of F(2,3), and only it, negated
        bt[-1] = [-v for v in bt[-1]]
        at = [[*row[:-1], -row[-1]] for row in at]
    return Transforms(m, r, _freeze(at), _freeze(g), _freeze(bt))


def verify(t: Transforms) -> bool:
    """True when the algebraic identity A^T[(G g)*(B^T d)] = direct holds exactly.

    The identity is bilinear, so it is checked on all pairs of unit vectors.
    """
    for i in range(t.m):
        for j in range(t.r):
            for k in range(t.alpha):
                terms = (t.at[i][x] * t.g[x][j] * t.bt[x][k] for x in range(t.alpha))
                if sum(terms, Fraction(0)) != (1 if i + j == k else 0):
                    return False
    return True


def _product(values: list[Fraction]) -> Fraction:
    out = Fraction(1)
    for v in values:
        out *= v
    return out


def _from_roots(roots: list[Fraction]) -> list[Fraction]:
    """Coefficients of prod(x - root), lowest power first."""
    poly = [Fraction(1)]
    for root in roots:
        shifted = [Fraction(0), *poly]
        poly = [a - root * b for a, b in zip(shifted, [*poly, Fraction(0)], strict=True)]
    return poly


def _freeze(rows: list[list[Fraction]]) -> Matrix:
    return tuple(tuple(row) for row in rows)
