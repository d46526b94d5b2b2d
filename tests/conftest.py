"""GPU tests skipped without a GPU; a fixed seed; scripts as modules; a cache for the run alone."""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from gpu import has_gpu

from tvm_winograd.codegen.kernel_cache import VARIABLE

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


_CACHE = pytest.StashKey[tempfile.TemporaryDirectory]()


def pytest_configure(config: pytest.Config) -> None:
    """All workers of a run share one cache, which is empty at its start."""
    if not hasattr(config, "workerinput"):
        folder = tempfile.TemporaryDirectory(prefix="tvm-winograd-tests-")
        config.stash[_CACHE] = folder
        os.environ[VARIABLE] = str(Path(folder.name, "kernels"))


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


@pytest.fixture(scope="module")
def script():
    """Loads a file of benchmarks/, as for a script."""
    before = set(sys.modules)
    sys.path.insert(0, str(BENCHMARKS))
    yield importlib.import_module
    sys.path.remove(str(BENCHMARKS))
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(BENCHMARKS)):
            del sys.modules[name]
