from fractions import Fraction

import numpy as np
import pytest

from tvm_winograd import TvmWinogradError
from tvm_winograd.transforms import cook_toom, verify

# Lavin and Gray, arXiv 1509.09308; F(6,3) at the points 0, 1, -1, 2, -2, 1/2, -1/2
PAPERS = {
    (2, 3): {
        "bt": "1 0 -1 0 | 0 1 1 0 | 0 -1 1 0 | 0 1 0 -1",
        "g": "1 0 0 | 1/2 1/2 1/2 | 1/2 -1/2 1/2 | 0 0 1",
        "at": "1 1 1 0 | 0 1 -1 -1",
    },
    (4, 3): {
        "bt": "4 0 -5 0 1 0 | 0 -4 -4 1 1 0 | 0 4 -4 -1 1 0 | 0 -2 -1 2 1 0 | 0 2 -1 -2 1 0 "
        "| 0 4 0 -5 0 1",
        "g": "1/4 0 0 | -1/6 -1/6 -1/6 | -1/6 1/6 -1/6 | 1/24 1/12 1/6 | 1/24 -1/12 1/6 | 0 0 1",
        "at": "1 1 1 1 1 0 | 0 1 -1 2 -2 0 | 0 1 1 4 4 0 | 0 1 -1 8 -8 1",
    },
    (6, 3): {
        "bt": "1 0 -21/4 0 21/4 0 -1 0 | 0 1 1 -17/4 -17/4 1 1 0 | 0 -1 1 17/4 -17/4 -1 1 0 "
        "| 0 1/2 1/4 -5/2 -5/4 2 1 0 | 0 -1/2 1/4 5/2 -5/4 -2 1 0 | 0 2 4 -5/2 -5 1/2 1 0 "
        "| 0 -2 4 5/2 -5 -1/2 1 0 | 0 -1 0 21/4 0 -21/4 0 1",
        "g": "1 0 0 | -2/9 -2/9 -2/9 | -2/9 2/9 -2/9 | 1/90 1/45 2/45 | 1/90 -1/45 2/45 "
        "| 32/45 16/45 8/45 | 32/45 -16/45 8/45 | 0 0 1",
        "at": "1 1 1 1 1 1 1 0 | 0 1 -1 2 -2 1/2 -1/2 0 | 0 1 1 4 4 1/4 1/4 0 "
        "| 0 1 -1 8 -8 1/8 -1/8 0 | 0 1 1 16 16 1/16 1/16 0 | 0 1 -1 32 -32 1/32 -1/32 1",
    },
}


def parse(text):
    return tuple(tuple(Fraction(v) for v in row.split()) for row in text.split("|"))


@pytest.mark.parametrize("size", PAPERS)
@pytest.mark.parametrize("matrix", ["bt", "g", "at"])
def test_literal_matrices_of_the_papers(size, matrix):
    assert getattr(cook_toom(*size), matrix) == parse(PAPERS[size][matrix])


@pytest.mark.parametrize("r", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("m", [1, 2, 3, 4, 5, 6, 7])
def test_algebraic_identity_is_exact(m, r):
    if m + r - 1 < 2:
        pytest.skip("F(1,1) is a product")
    assert verify(cook_toom(m, r))


def test_identity_fails_for_a_wrong_matrix():
    from dataclasses import replace

    right = cook_toom(2, 3)
    wrong = [list(row) for row in right.bt]
    wrong[3][1] = -wrong[3][1]
    assert not verify(replace(right, bt=tuple(map(tuple, wrong))))


def test_one_dimensional_convolution(rng):
    t = cook_toom(4, 3)
    at, g, bt = t.arrays()
    d, f = rng.standard_normal(6), rng.standard_normal(3)
    direct = [d[i : i + 3] @ f for i in range(4)]
    np.testing.assert_allclose(at @ ((g @ f) * (bt @ d)), direct, rtol=1e-12)


def test_limits():
    for m, r in ((0, 3), (2, 0), (1, 1), (11, 3)):
        with pytest.raises(TvmWinogradError, match="supported"):
            cook_toom(m, r)
