"""GPU tests are skipped where there is no GPU; a fixed seed for every test."""

from __future__ import annotations

import numpy as np
import pytest
from gpu import has_gpu


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if has_gpu():
        return
    skip = pytest.mark.skip(reason="no NVIDIA GPU here")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)
