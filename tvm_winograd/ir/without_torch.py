"""TVM imported without torch, which it loads if it is there: 2 of an import's 3 seconds.

TVM's ffi looks for torch to take its tensors by a short way. A process that passes TVM arrays of
numpy alone does not need it; torch can be imported behind TVM and exchanges tensors by DLPack.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType

_PACKAGES = ("tvm", "tvm_ffi")


def install() -> None:
    """Hides torch from the import of TVM, if neither has been imported yet."""
    if not any(name in sys.modules for name in ("torch", *_PACKAGES)):
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    """Finds TVM's packages where they are, with a loader that hides torch."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in _PACKAGES:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


class _Loader(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        with _hidden("torch"):
            super().exec_module(module)


@contextmanager
def _hidden(name: str) -> Iterator[None]:
    """Lets `import name` fail, as where it is not installed."""
    if name in sys.modules:  # it is loaded, or hidden by the package around this one
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[name]
