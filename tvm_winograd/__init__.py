"""Winograd convolution for CNNs, compiled by Apache TVM. See docs/architecture.md.

Importing this package loads neither TVM nor any compiler; the names below load what they need.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

__version__ = "0.1.0"

# In a checkout schedules/ and tune_logs/ lie beside this folder; pyproject.toml maps them to
# tvm_winograd.schedules and tvm_winograd.tune_logs, and this finds them when not installed.
_ROOT = Path(__file__).resolve().parent.parent
if (_ROOT / "schedules" / "__init__.py").is_file() and (_ROOT / "pyproject.toml").is_file():
    __path__.append(str(_ROOT))

_EXPORTS = {
    "ConvSpec": "shapes",
    "Epilogue": "shapes",
    "TvmWinogradError": "errors",
    "compile": "compiler",
    "conv2d": "conv",
    "CompiledConv": "conv",
    "load": "runtime",
    "Artifact": "artifact",
}
__all__ = [*_EXPORTS, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_EXPORTS[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
